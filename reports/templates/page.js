// What every page has: helpers for the charts' scripts, buttons that copy code, and tables sorted by a column.
"use strict";
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const makeSvg = (name, attributes, text = "") => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
};
const openChart = (name) => {
  const figure = document.getElementById(name + "-figure");
  const data = JSON.parse(document.getElementById(name + "-data").textContent);
  return { figure, data, find: (selector) => figure.querySelector(selector) };
};
const listenForKeys = (element, keys) => element.addEventListener("keydown", (event) => {
  if (!Object.hasOwn(keys, event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  keys[event.key]();
});
const makeButton = (name, text = "") => {
  const button = document.createElement("button");
  button.type = "button";
  button.className = name;
  button.textContent = text;
  return button;
};

(() => {
  const SHOWN_MS = 2000, status = document.createElement("p");
  status.className = "unseen";
  status.setAttribute("role", "status");
  // Some browsers have no clipboard for pages that are opened as files.
  const copySelected = (text) => {
    const area = document.createElement("textarea");
    area.className = "unseen";
    area.value = text;
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  };
  const copy = async (button, text) => {
    const isCopied = await (navigator.clipboard?.writeText(text) ?? Promise.reject()).then(() => true, () => copySelected(text));
    button.focus();
    button.textContent = status.textContent = isCopied ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = "Copy"; status.textContent = ""; }, SHOWN_MS);
  };
  for (const box of document.querySelectorAll(".code")) {
    const button = makeButton("copy", "Copy");
    button.addEventListener("click", () => copy(button, box.querySelector("pre").textContent.trimEnd()));
    box.append(button);
  }
  document.body.append(status);
})();

(() => {
  const ORDERS = { number: ["descending", "ascending"], text: ["ascending", "descending"] };
  const compareTexts = new Intl.Collator(undefined, { numeric: true }).compare;
  const sort = (rows, column, kind, order) => {
    const read = ({ cells: { [column]: cell } }) => kind === "number" ? Number(cell.dataset.value ?? NaN) : cell.textContent;
    const isKnown = (value) => kind === "number" ? !Number.isNaN(value) : !["", "-"].includes(value);
    const compare = kind === "number" ? (one, other) => one - other : compareTexts, sign = order === "ascending" ? 1 : -1;
    const known = rows.filter((row) => isKnown(read(row))), unknown = rows.filter((row) => !isKnown(read(row)));
    return [...known.sort((one, other) => sign * compare(read(one), read(other))), ...unknown];
  };
  // Totals stay where they are: rows are sorted between them.
  const sortBetweenTotals = (rows, ...by) => {
    const sorted = [];
    for (let start = 0; start < rows.length;) {
      const total = rows.findIndex((row, at) => at >= start && row.classList.contains("total")), end = total < 0 ? rows.length : total;
      sorted.push(...sort(rows.slice(start, end), ...by), ...rows.slice(end, end + 1));
      start = end + 1;
    }
    return sorted;
  };
  for (const head of document.querySelectorAll("th[data-sort]")) {
    const body = head.closest("table").tBodies[0], rows = [...body.rows], kind = head.dataset.sort;
    const button = makeButton("sort");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const order = ORDERS[kind][ORDERS[kind].indexOf(head.getAttribute("aria-sort")) + 1];
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      if (order) head.setAttribute("aria-sort", order);
      body.append(...order ? sortBetweenTotals(rows, head.cellIndex, kind, order) : rows);
    });
  }
})();
