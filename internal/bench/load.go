package bench

import "math/rand/v2"

// The ways in which requests spread over resources.
const (
	spreadEven  = ""      // each request picks a resource at random
	spreadAlone = "alone" // the n-th request picks the n-th resource: none is shared
	spreadZipf  = "zipf"  // some resources are wanted much more than others
)

// zipfExponent is s of Zipf's law: the n-th resource is wanted n^-s times as often as the first.
const zipfExponent = 1.1

// zipfSeed makes the n-th request of each run want the same resource.
const zipfSeed = 17

// load says which resources requests are for.
type load struct {
	resources int
	spread    string
}

func (l load) String() string {
	text := plural(l.resources, "resource")
	switch l.spread {
	case spreadAlone:
		text += " that are not shared"
	case spreadZipf:
		text += " by Zipf"
	}
	return text
}

// pick returns the number of the resource of the n-th request.
func (l load) pick(n int) int {
	switch l.spread {
	case spreadAlone:
		return n % l.resources
	case spreadZipf:
		source := rand.New(rand.NewPCG(uint64(n), zipfSeed))
		return int(rand.NewZipf(source, zipfExponent, 1, uint64(l.resources-1)).Uint64())
	default:
		return rand.IntN(l.resources)
	}
}
