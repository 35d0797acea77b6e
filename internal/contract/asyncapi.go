package contract

import (
	"fmt"
	"os"
	"strings"

	"github.com/go-json-experiment/json"
	"go.yaml.in/yaml/v4"
)

// AsyncAPI has the parts of docs/asyncapi.yaml that tests use.
type AsyncAPI struct {
	Channels map[string]struct {
		Address  string         `yaml:"address"`
		Messages map[string]Ref `yaml:"messages"`
	} `yaml:"channels"`
	Operations map[string]struct {
		Action   string `yaml:"action"`
		Channel  Ref    `yaml:"channel"`
		Messages []Ref  `yaml:"messages"`
		Reply    struct {
			Messages []Ref `yaml:"messages"`
		} `yaml:"reply"`
	} `yaml:"operations"`
	Components struct {
		Parameters map[string]struct {
			Enum []string `yaml:"enum"`
		} `yaml:"parameters"`
		Messages map[string]Message `yaml:"messages"`
	} `yaml:"components"`
}

// Message is a message of the document.
type Message struct {
	Name        string `yaml:"name"`
	Description string `yaml:"description"`
	Traits      []Ref  `yaml:"traits"`
	Payload     struct {
		Schema Ref `yaml:"schema"`
	} `yaml:"payload"`
	Headers struct {
		Required []string `yaml:"required"`
	} `yaml:"headers"`
	Answers  map[string]string `yaml:"x-answers"` // by the name of an example: the event that answers it
	Examples []Example         `yaml:"examples"`
}

// Example is an example of a message.
type Example struct {
	Name    string            `yaml:"name"`
	Headers map[string]string `yaml:"headers"`
	Payload any               `yaml:"payload"`
}

// JSON returns the payload as deterministic JSON.
func (e Example) JSON() ([]byte, error) {
	text, err := json.Marshal(e.Payload, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("example %s: %w", e.Name, err)
	}
	return text, nil
}

// Ref refers to another part of the document, or to a file.
type Ref struct {
	To string `yaml:"$ref"`
}

// Name returns the last part of the path that the Ref refers to.
func (r Ref) Name() string { return r.To[strings.LastIndex(r.To, "/")+1:] }

// ReadAsyncAPI reads an AsyncAPI document.
func ReadAsyncAPI(path string) (doc AsyncAPI, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return AsyncAPI{}, err
	}
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return AsyncAPI{}, fmt.Errorf("%s: %w", path, err)
	}
	return doc, nil
}
