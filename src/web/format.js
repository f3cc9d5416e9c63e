// Human-readable numbers, with the same digits as the command prints (src/base/units.c).

// Like printf("%.*f"): exact ties round to even, where toFixed rounds them up.
function fixed(value, digits) {
  const rounded = value.toFixed(digits);
  const more = 60;
  const all = Math.abs(value).toFixed(digits + more);
  if (!/^50*$/.test(all.slice(-more))) return rounded;
  const kept = all.slice(0, digits ? -more : -more - 1);
  if (Number(kept[kept.length - 1]) % 2) return rounded;
  return (value < 0 ? "-" : "") + kept;
}

// printf("%.2e"): an exponent of at least two digits.
function scientific(value) {
  return value.toExponential(2).replace(/e([+-])(\d)$/, "e$10$2");
}

function withUnit(value, unit) {
  if (value >= 9999.5) return `${scientific(value)} ${unit}`;
  return `${fixed(value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2)} ${unit}`;
}

function seconds(value) {
  if (!(value > 0) || !isFinite(value)) return value === 0 ? "0 s" : "?";
  const units = [
    [1e9, "ns"],
    [1e6, "us"],
    [1e3, "ms"],
    [1, "s"],
  ];
  let unit = 0;
  while (unit < 3 && value * units[unit][0] >= 999.5) unit++;
  return withUnit(value * units[unit][0], units[unit][1]);
}

// A difference: may be negative.
function signedSeconds(value) {
  return value < 0 ? `-${seconds(-value)}` : seconds(value);
}

function bytes(value) {
  if (value < 1024) return `${value} B`;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let unit = 0;
  while (value >= 999.5 && unit + 1 < units.length) {
    value /= 1024;
    unit++;
  }
  if (value === Math.floor(value) && value < 1000) return `${value} ${units[unit]}`;
  return withUnit(value, units[unit]);
}

function percent(value) {
  return `${fixed(100 * value, 1)}%`;
}

// What `--json` prints: twelve digits.
function exact(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(12))) : String(value);
}

// For a small field: eight digits, and 4.7e-6 instead of 0.0000047.
function compact(value) {
  const rounded = Number(value.toPrecision(8));
  return rounded > 0 && rounded < 1e-3 ? rounded.toExponential() : String(rounded);
}

function nanoseconds(value) {
  return `${Number((value * 1e9).toPrecision(4))} ns`;
}

// Seconds per byte as Gbit/s.
function gigabits(value) {
  return value > 0 ? `${Number((8e-9 / value).toPrecision(3))} Gbit/s` : "";
}

// A name from outside: invisible and bidirectional characters are escaped.
function visible(name) {
  return String(name).replace(
    /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

// Shortens a name: the ends tell tensors apart, not the middle.
function short(name, most = 60) {
  const text = visible(name);
  if (text.length <= most) return text;
  const half = Math.floor((most - 1) / 2);
  return `${text.slice(0, half)}\u2026${text.slice(-half)}`;
}

function plural(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

// For lists of any length, which may be too long for Math.max(...list).
const greatest = (values, floor = -Infinity) =>
  values.reduce((most, value) => (value > most ? value : most), floor);
const least = (values, ceiling = Infinity) =>
  values.reduce((low, value) => (value < low ? value : low), ceiling);
