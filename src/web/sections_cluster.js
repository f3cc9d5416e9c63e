// The cluster and the model: scaling, the cost of a message, tensor sizes.

// ---- Scaling ----

function scalingRows(rows) {
  const series = new Map();
  for (const row of rows) {
    const key = `${row.algorithm} ${row.policy}`;
    if (!series.has(key)) series.set(key, { algorithm: row.algorithm, policy: row.policy, rows: [] });
    series.get(key).rows.push(row);
  }
  for (const one of series.values()) one.rows.sort((a, b) => a.workers - b.workers);
  return [...series.values()];
}

// Efficiency is the useful share of each worker; in the ideal case it stays near 100%, and one sees which policy drops
// first.
function scalingFigure(name, rows, efficiency) {
  const series = scalingRows(rows);
  const algorithms = new Set(series.map((one) => one.algorithm));
  const workers = rows.map((row) => row.workers);
  const low = least(workers),
    high = greatest(workers);
  const top = efficiency ? 1 : greatest(rows.map((row) => row.speedup)) * 1.1;
  const value = (row) => (efficiency ? row.efficiency : row.speedup);
  const columns = [
    ["workers", "count"],
    ["algorithm", "text"],
    ["policy", "text"],
    ["messages", "count"],
    ["iteration", "s"],
    ["exposed", "s"],
    ["speed-up", "ratio"],
    ["efficiency", "percent"],
  ];
  const reach = Math.min(high, top); // the range of perfect speed-up in the picture
  const ideal = efficiency
    ? [
        [low, 1],
        [high, 1],
      ]
    : [
        [low, low],
        [reach, reach],
      ];
  const picture = linePlot({
    label: `${efficiency ? "Efficiency" : "Speed-up"} over the number of workers`,
    ideal: ideal[1][0] > low ? ideal : null,
    x: { label: "workers", low, high, log: efficiency ? 2 : 0, most: 12 },
    y: efficiency
      ? { label: "efficiency: computation's share of the step", low: 0, high: 1, format: (share) => `${Math.round(100 * share)}%` }
      : { label: "speed-up over one worker", low: 0, high: Math.max(top, 1) },
    series: series.map((one, i) => ({
      name: algorithms.size > 1 ? `${one.policy}, ${one.algorithm}` : one.policy,
      ink: algorithms.size > 1 ? `ink${(i % 7) + 1}` : inkOf(one.policy, i),
      strong: OURS.includes(one.policy),
      dots: true,
      points: one.rows.map((row) => [
        row.workers,
        value(row),
        `${row.policy}, ${row.workers} workers: efficiency ${percent(row.efficiency)}, speed-up ${fixed(row.speedup, 2)}, ${seconds(row.iteration_s)} per step`,
      ]),
    })),
  });
  return figure({
    name,
    picture,
    columns,
    rows: rows.map((row) => [
      row.workers,
      row.algorithm,
      row.policy,
      row.messages,
      row.iteration_s,
      row.exposed_s,
      row.speedup,
      row.efficiency,
    ]),
  });
}

function scalingSection(id, title, about, rows, efficiency, setEfficiency) {
  if (!rows.length || new Set(rows.map((row) => row.workers)).size < 2) return null;
  const button = (text, value) =>
    el(
      "button",
      { type: "button", "aria-pressed": String(efficiency === value), onclick: () => setEfficiency(value) },
      text,
    );
  return section(
    id,
    title,
    about,
    el(
      "div",
      { class: "bar", role: "group", "aria-label": "what the curves show" },
      button("efficiency", true),
      button("speed-up", false),
    ),
    scalingFigure(id, rows, efficiency),
  );
}

// ---- T(M) ----

// The kinds of collectives whose costs a page shows: of kinds with equal costs, only one.
function costKinds(cluster) {
  const kinds = [];
  for (const one of cluster.collectives) {
    const shown = ["reduce-scatter", "all-gather"].includes(one.kind) || one.given;
    const alike = kinds.find(
      (other) =>
        other.a_s === one.a_s &&
        other.b_s_per_byte === one.b_s_per_byte &&
        !other.sample_bytes.length &&
        !one.sample_bytes.length,
    );
    if (shown && alike) alike.name += `, ${one.kind}`;
    else if (shown) kinds.push({ ...one, name: one.kind });
  }
  return kinds;
}

function costSection(cluster) {
  const samplesOf = (one) =>
    Array.from(one.sample_bytes, (size, i) => [size, one.sample_seconds[i]]).filter(([size]) => size > 0);
  const line = (one) => (size) => one.a_s + one.b_s_per_byte * size;
  const samples = samplesOf(cluster);
  const kinds = [{ ...cluster, name: "all-reduce" }, ...costKinds(cluster)];
  const sizes = samples.length ? samples.map(([size]) => size) : [1024, 2 ** 28];
  const low = least(sizes),
    high = greatest(sizes, low * 4);
  const points = Array.from({ length: 81 }, (_, i) => low * (high / low) ** (i / 80));
  const inks = ["ink1", "ink4", "ink3", "ink5", "ink2"];
  const series = kinds.flatMap((one, k) => {
    const measured = samplesOf(one);
    return [
      {
        name: measured.length ? `${one.name}, fit` : one.name,
        ink: inks[k],
        points: points.map((size) => [size, line(one)(size)]),
      },
      {
        name: k ? `${one.name}, measured` : "measured",
        ink: k ? inks[k] : "ink7",
        line: false,
        dots: true,
        points: measured.map(([size, time]) => [
          size,
          time,
          `${one.name}, ${bytes(size)}: measured ${seconds(time)}, fit ${seconds(line(one)(size))}`,
        ]),
      },
    ];
  });
  const times = series.flatMap((one) => one.points.map(([, time]) => time)).filter((time) => time > 0);
  if (!times.length) return null;
  const columns = [
    ["bytes", "count"],
    ...(samples.length
      ? [
          ["measured", "s"],
          ["a + b M", "s"],
          ["error", "percent"],
        ]
      : [["time", "s"]]),
    ...kinds.slice(1).map((one) => [one.name, "s"]),
  ];
  const others = (size) => kinds.slice(1).map((one) => line(one)(size));
  const rows = samples.length
    ? samples.map(([size, time]) => {
        const fitted = line(cluster)(size);
        return [size, time, fitted, (fitted - time) / time, ...others(size)];
      })
    : Array.from({ length: 10 }, (_, k) => 1024 * 4 ** k).map((size) => [
        size,
        line(cluster)(size),
        ...others(size),
      ]);
  const picture = linePlot({
    label: "Time of one collective over the size of its message",
    x: { label: "size of the message", low, high, log: 4, format: bytes, most: 8 },
    y: { label: "time", low: least(times), high: greatest(times), log: 10, format: seconds },
    series,
  });
  const fit =
    samples.length && cluster.r2 !== undefined
      ? ` Fitted to ${samples.length} samples: R\u00b2 ${fixed(cluster.r2, 4)}, largest error ${percent(cluster.max_relative_error)}.`
      : "";
  const formula = (one) => `${seconds(one.a_s)} + M \u00d7 ${nanoseconds(one.b_s_per_byte)}`;
  return section(
    "cost",
    "What a message costs",
    `An all-reduce takes T(M) = ${formula(cluster)} for a message of M bytes among ${cluster.workers} workers.${fit} ` +
      kinds
        .slice(1)
        .map((one) => `${one.name}: ${formula(one)}${one.given ? "" : ", derived from it"}.`)
        .join(" ") +
      (cluster.beside_message > 1 || cluster.beside_compute > 1
        ? ` While both run, messages take ${fixed(cluster.beside_message, 2)} and computation ${fixed(cluster.beside_compute, 2)} times as long.`
        : ""),
    figure({ name: "cost", picture, columns, rows }),
  );
}

// ---- Tensor sizes ----

function sizesSection(trace, elementBytes) {
  const bins = [];
  for (const count of trace.counts) {
    const size = count * elementBytes;
    let k = 0;
    for (let left = size; left >= 4 && k < 31; left = Math.floor(left / 4)) k++;
    bins[k] = bins[k] || { tensors: 0, bytes: 0 };
    bins[k].tensors++;
    bins[k].bytes += size;
  }
  const first = bins.findIndex(Boolean),
    total = trace.counts.reduce((sum, count) => sum + count, 0) * elementBytes;
  const shown = Array.from({ length: bins.length - first }, (_, i) => ({
    low: 4 ** (first + i),
    ...(bins[first + i] || { tensors: 0, bytes: 0 }),
  }));
  const columns = [
    ["from", "bytes"],
    ["below", "bytes"],
    ["tensors", "count"],
    ["together", "bytes"],
    ["share of bytes", "percent"],
  ];
  const rows = shown.map((bin) => [
    bin.low,
    bin.low * 4,
    bin.tensors,
    bin.bytes,
    total ? bin.bytes / total : 0,
  ]);
  const picture = columnPlot({
    label: "How many tensors there are of each size",
    x: {
      label: "size of a tensor",
      low: shown[0].low,
      high: shown[shown.length - 1].low * 4,
      log: 4,
      format: bytes,
      most: 8,
    },
    y: { label: "tensors", low: 0, high: greatest(shown.map((bin) => bin.tensors)) * 1.1 },
    columns: shown.map((bin) => ({
      from: bin.low,
      to: bin.low * 4,
      value: bin.tensors,
      text: `${bytes(bin.low)} to ${bytes(bin.low * 4)}: ${plural(bin.tensors, "tensor")}, ${bytes(bin.bytes)}`,
    })),
  });
  return section(
    "sizes",
    "Tensor sizes",
    `${plural(trace.counts.length, "gradient tensor")}, ${bytes(total)}: a few large ones hold most of the bytes.`,
    figure({ name: "sizes", picture, columns, rows }),
  );
}
