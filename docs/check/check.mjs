// Validates ../asyncapi.yaml with AsyncAPI's own parser, and its schemas and examples with Ajv: a
// second opinion beside the Go tests. Prints what is wrong and ends with 1, else one line and 0.
import { readFileSync, readdirSync } from "node:fs";
import { fromFile, Parser } from "@asyncapi/parser";
import { Ajv2020 } from "ajv/dist/2020.js";
import formats from "ajv-formats";

const docs = new URL("../", import.meta.url);
const wrong = [];

const ajv = new Ajv2020({ strict: true, strictRequired: false, allErrors: true });
formats.default(ajv);
const validators = new Map();
for (const path of readdirSync(new URL("schemas/", docs), { recursive: true })) {
  if (!path.endsWith(".json")) continue;
  const schema = JSON.parse(readFileSync(new URL(`schemas/${path}`, docs), "utf8"));
  try {
    validators.set(schema.$id, ajv.compile(schema));
  } catch (error) {
    wrong.push(`schemas/${path}: ${error.message}`);
  }
}

// The parser knows draft-07; of 2020-12 it is told here that Ajv has read it.
const parser = new Parser();
parser.registerSchemaParser({
  getMimeTypes: () => ["application/schema+json;version=draft-2020-12"],
  parse: (input) => input.data,
  validate: (input) => (validators.has(input.data.$id) ? [] : [{ message: "not a schema of docs/schemas", path: input.path }]),
});
const { document, diagnostics } = await fromFile(parser, new URL("asyncapi.yaml", docs).pathname).parse();
for (const d of diagnostics) wrong.push(`asyncapi.yaml: ${d.path.join(".")}: ${d.message}`);

let examples = 0;
for (const message of document?.allMessages().all() ?? []) {
  const validate = validators.get(message.payload()?.json().$id);
  for (const example of message.examples().all()) {
    examples++;
    if (validate && !validate(example.payload())) {
      wrong.push(`asyncapi.yaml: ${message.id()}: example ${example.name()}: ${ajv.errorsText(validate.errors)}`);
    }
  }
}
if (examples === 0) wrong.push("asyncapi.yaml: no examples");

for (const line of wrong) console.error(line);
if (wrong.length > 0) process.exit(1);
console.log(`asyncapi.yaml ${document.version()}, ${validators.size} schemas and ${examples} examples are valid`);
