// Builds the document. Text is only ever inserted as text: nothing here parses markup.

function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : document.createTextNode(child));
  }
  return parent;
}

function setAll(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  return element;
}

function el(tag, attributes = {}, ...children) {
  return append(setAll(document.createElement(tag), attributes), children);
}

function svg(tag, attributes = {}, ...children) {
  return append(setAll(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes), children);
}

function byId(id) {
  return document.getElementById(id);
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Saved pictures are for print: in light colours, whatever the screen uses.
function onPaper(make) {
  const page = document.documentElement.classList;
  page.add("paper");
  try {
    return make();
  } finally {
    page.remove("paper");
  }
}

function download(name, type, text) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// ---- Tables: columns are [head, unit], with the unit s, bytes, count, ratio, percent or text ----

const showAs = {
  s: (value) => signedSeconds(value),
  bytes: (value) => bytes(value),
  count: (value) => String(value),
  ratio: (value) => fixed(value, 2),
  percent: (value) => percent(value),
  text: (value) => short(value),
  code: (value) => el("code", {}, visible(value)), // to be copied, so never shortened
};

const ROWS_SHOWN = 200;

// Words are aligned left, numbers right; lines of code are never cut.
const CELL_CLASS = { text: "text", code: "text code" };

function tableOf(columns, rows, chosen) {
  const body = el("tbody");
  const fill = (count) =>
    rows.slice(body.rows.length, count).forEach((row) =>
      body.append(
        el(
          "tr",
          { class: chosen && chosen(row) ? "chosen" : null },
          row.map((value, c) =>
            el(
              "td",
              {
                class: CELL_CLASS[columns[c][1]],
                title:
                  columns[c][0] === "policy"
                    ? aboutPolicy(value)
                    : columns[c][1] === "text" && String(value).length > 60
                      ? short(value, 400)
                      : null,
              },
              value === null || value === undefined ? "" : showAs[columns[c][1]](value),
            ),
          ),
        ),
      ),
    );
  fill(ROWS_SHOWN);
  const table = el(
    "table",
    {},
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        columns.map(([head, unit]) =>
          el("th", { scope: "col", class: CELL_CLASS[unit] }, head),
        ),
      ),
    ),
    body,
  );
  const scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "table" }, table);
  if (rows.length <= ROWS_SHOWN) return scroll;
  const more = el(
    "button",
    {
      type: "button",
      onclick: () => {
        fill(rows.length);
        more.remove();
      },
    },
    `show all ${rows.length} rows`,
  );
  return el("div", {}, scroll, el("div", { class: "bar" }, more));
}

// A cell that a spreadsheet would interpret as a formula is quoted as text.
function csvOf(columns, rows) {
  const suffix = { s: "_s", bytes: "", count: "", ratio: "", percent: "", text: "" };
  const cell = (value) => {
    let text = value === null || value === undefined ? "" : exact(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  const heads = columns.map(([head, unit]) => head.replace(/[^A-Za-z0-9]+/g, "_") + suffix[unit]);
  return [heads, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

// ---- The tooltip ----

function showTip(text, x, y) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 4))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

// Marks have a description, for the pointer and for screen readers.
function described(mark, text) {
  mark.append(svg("title", {}, text));
  return mark;
}
