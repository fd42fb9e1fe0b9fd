/** Elements from data. Text only ever becomes text: nothing here, or elsewhere, parses HTML. */

type Child = Node | string | undefined | false;
type Attributes = Record<string, string | boolean | undefined>;

/** An element; attributes that are false or undefined are left out, true ones are empty. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.filter((child) => child !== undefined && child !== false));
  return element;
}

/** A button. */
export function button(label: string, kind: string, press: () => void): HTMLButtonElement {
  const made = h("button", { type: "button", class: kind }, label);
  made.addEventListener("click", press);
  return made;
}

/** The element of the page with this id. */
export function byId<T extends HTMLElement>(id: string, type: new () => T): T {
  const found = document.getElementById(id);
  if (!(found instanceof type)) throw new Error(`#${id} is not in the page`);
  return found;
}

/** `SESSION_STATE_IDLE` and the like, as a word: the name of a value of a TypeScript enum. */
export function word(names: Record<number, string>, value: number): string {
  return (names[value] ?? "unknown").toLowerCase().replaceAll("_", " ");
}

/** JSON text for people; as it is where it is not whole. */
export function pretty(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), undefined, 2);
  } catch {
    return json;
  }
}
