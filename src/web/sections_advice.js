// What to change first: the answer, the lines to change, and the options by expected gain.

function leverFigure(numbers) {
  const columns = [
    ["lever, alone", "text"],
    ["step", "s"],
    ["samples per step", "ratio"],
    ["samples per second", "ratio"],
  ];
  const rows = numbers.levers.map((lever) => [lever.change, lever.iteration_s, lever.samples, lever.gain]);
  const picture = barPlot({
    label: "Samples per second with each change alone, relative to DDP's default",
    rows: numbers.levers.map((lever) => ({
      name: lever.lever,
      note: `${fixed(lever.gain, 3)}\u00d7 (${seconds(lever.iteration_s)})`,
      strong: lever === numbers.levers[0],
      parts: [
        {
          value: Math.min(lever.gain, 1),
          class: "backward",
          text: `${lever.change}: ${fixed(lever.gain, 3)} times as many samples per second`,
        },
        {
          value: Math.max(lever.gain - 1, 0),
          class: "hidden",
          text: `${lever.change}: gains ${percent(lever.gain - 1)}`,
        },
      ],
    })),
    bound: { value: 1, text: "DDP's default" },
  });
  return figure({ name: "levers", picture, columns, rows });
}

function adviceSection(advice) {
  if (!advice) return null;
  const lines = [
    ["the line to change", "code"],
    ["step", "s"],
    ["saved", "percent"],
  ];
  return section(
    "advice",
    "What to change first",
    null,
    el("p", { class: "answer" }, el("b", {}, advice.answer)),
    tableOf(
      lines,
      advice.lines.map((one) => [one.line.trim(), one.iteration_s, one.saved]),
    ),
    advice.numbers.levers.length ? leverFigure(advice.numbers) : null,
    el(
      "ul",
      { class: "quiet" },
      advice.numbers.levers.map((lever) => el("li", {}, `${lever.lever}: ${short(lever.change, 100)}`)),
    ),
    el("p", {}, advice.limit),
  );
}
