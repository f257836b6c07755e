// SPDX-License-Identifier: Apache-2.0
// Elements are made here and nowhere else. Data becomes text, never markup.

type Attributes = Record<string, string | number>;
type Child = Node | string;

function fill<E extends Element>(element: E, attributes: Attributes, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children); // a string becomes a text node
  return element;
}

export function html<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  return fill(document.createElement(tag), attributes, children);
}

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

export function find<E extends Element>(selector: string, inside: ParentNode = document): E | null {
  return inside.querySelector<E>(selector);
}
