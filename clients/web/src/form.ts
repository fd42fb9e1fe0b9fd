import { h } from "./dom.js";

interface Schema {
  readonly type?: string;
  readonly title?: string;
  readonly description?: string;
  readonly enum?: readonly string[];
  readonly enumNames?: readonly string[];
  readonly default?: unknown;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly required?: readonly string[];
}

interface Field {
  readonly name: string;
  readonly element: HTMLElement;
  readonly read: () => unknown;
}

/** Fields for the flat JSON Schemas that elicitation allows; one for JSON where a schema is another. */
export function schemaFields(schemaJson: string): {
  elements: HTMLElement[];
  read: () => Record<string, unknown>;
} {
  if (!schemaJson) return { elements: [], read: () => ({}) };
  const { properties = {}, required = [] } = parse(schemaJson);
  const fields = Object.entries(properties).map(([name, schema]) =>
    field(name, schema, required.includes(name)),
  );
  const read = () => {
    const values = fields.map(({ name, read: value }) => [name, value()] as const);
    return Object.fromEntries(values.filter(([, value]) => value !== undefined));
  };
  return { elements: fields.map(({ element }) => element), read };
}

function parse(schemaJson: string): Schema {
  try {
    const schema = JSON.parse(schemaJson) as Schema | null;
    return schema !== null && typeof schema === "object" ? schema : {};
  } catch {
    return {};
  }
}

function field(name: string, schema: Schema, required: boolean): Field {
  const { type, title = name, description, enum: values } = schema;
  const known = schema.default === undefined ? "" : String(schema.default);
  let control: HTMLInputElement | HTMLSelectElement;
  let read: () => unknown;
  if (type === "boolean") {
    const box = h("input", { type: "checkbox", checked: schema.default === true });
    control = box;
    read = () => box.checked;
  } else if (values) {
    const options = values.map((value, index) =>
      h("option", { value, selected: value === known }, schema.enumNames?.[index] ?? value),
    );
    const select = h(
      "select",
      { required },
      ...(required ? [] : [h("option", { value: "" })]),
      ...options,
    );
    control = select;
    read = () => select.value || undefined;
  } else {
    const numeric = type === "number" || type === "integer";
    const step = type === "integer" ? "1" : "any";
    const input = h("input", {
      type: numeric ? "number" : "text",
      step: numeric && step,
      required,
      value: known,
    });
    control = input;
    read = () => (input.value === "" ? undefined : numeric ? Number(input.value) : input.value);
  }
  const caption = h("span", {}, title, required && " *");
  const element = h("label", { class: "field" }, caption, control);
  if (description) element.append(h("span", { class: "note" }, description));
  return { name, element, read };
}
