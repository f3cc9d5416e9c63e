// Large jobs: the expected effect of stragglers and failures, and the cost.

// One curve for each of these that the rows contain.
const OUTLOOKS = [
  {
    member: "expected_speedup",
    name: "speedup",
    label: "expected speed-up over one worker",
    about: "Speed-up with stragglers and failures",
    log: 10,
    format: plain,
  },
  {
    member: "slowest",
    name: "slowest",
    label: "computation of the slowest worker, relative to the mean",
    about: "How slow the slowest worker is",
    format: plain,
    alike: true, // the same for all policies
  },
  {
    member: "trains",
    name: "trains",
    label: "share of time spent training",
    about: "Share of time spent training",
    format: percent,
  },
  {
    member: "epoch_s",
    name: "epoch",
    label: "time of an epoch",
    about: "Time of an epoch",
    log: 10,
    format: seconds,
  },
  {
    member: "epoch_cost",
    name: "cost",
    label: "cost of an epoch",
    about: "Cost of an epoch",
    format: plain,
  },
];

function outlookPicture(what, rows) {
  const value = (row) => row[what.member];
  const all = scalingRows(rows),
    series = what.alike ? all.slice(0, 1) : all;
  const algorithms = new Set(series.map((one) => one.algorithm));
  const workers = rows.map((row) => row.workers),
    values = rows.map(value);
  const low = what.log ? least(values.filter((one) => one > 0)) : 0;
  const label = (one) => (algorithms.size > 1 ? `${one.policy}, ${one.algorithm}` : one.policy);
  return linePlot({
    label: `${what.about}, over the number of workers`,
    x: { label: "workers", low: least(workers), high: greatest(workers), log: 2, most: 12 },
    y: {
      label: what.label,
      low,
      high: Math.max(greatest(values) * (what.log ? 1 : 1.1), low * 1.01) || 1,
      log: what.log || 0,
      format: what.format,
    },
    series: series.map((one, i) => ({
      name: what.alike ? "all" : label(one),
      ink: algorithms.size > 1 ? `ink${(i % 7) + 1}` : inkOf(one.policy, i),
      strong: OURS.includes(one.policy),
      dots: true,
      points: one.rows.map((row) => [
        row.workers,
        value(row),
        `${label(one)}, ${row.workers} workers: ${what.label} ${what.format(value(row))}`,
      ]),
    })),
  });
}

function outlookSection(id, simulation) {
  const { rows } = simulation;
  if (!rows.length || rows.some((row) => row.expected_s === undefined)) return null;
  if (new Set(rows.map((row) => row.workers)).size < 2) return null;
  const shown = OUTLOOKS.filter(
    ({ member }) =>
      rows.every((row) => row[member] > 0) &&
      (member === "expected_speedup" || rows.some((row) => row[member] !== 1)),
  );
  const columns = [
    ["workers", "count"],
    ["algorithm", "text"],
    ["policy", "text"],
    ["slowest worker", "ratio"],
    ["step", "s"],
    ["a failure every", "s"],
    ["checkpoint every", "s"],
    ["trains", "percent"],
    ["speed-up", "ratio"],
    ["efficiency", "percent"],
    ["samples per second", "ratio"],
    ["epoch", "s"],
    ["cost of an epoch", "ratio"],
  ];
  const table = rows.map((row) => [
    row.workers,
    row.algorithm,
    row.policy,
    row.slowest,
    row.expected_s,
    row.failure_s,
    row.interval_s,
    row.trains,
    row.expected_speedup,
    row.expected_efficiency,
    row.samples_per_s,
    row.epoch_s,
    row.epoch_cost,
  ]);
  return section(
    id,
    "What to expect of large jobs",
    `From ${short(simulation.origin)}: each step takes as long as its slowest worker, and work lost in a failure is repeated.`,
    shown.map((what) => [
      el("h3", {}, what.about),
      figure({ name: `${id}-${what.name}`, picture: outlookPicture(what, rows), columns, rows: table }),
    ]),
  );
}
