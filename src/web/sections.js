// The sections of the page: each takes what it shows and gives an element, or null if there is nothing.

const INKS = { naive: "ink6", wfbp: "ink2", single: "ink3", mgwfbp: "ink1", optimal: "ink4", ddp: "ink5" };
const inkOf = (policy, i) => INKS[policy.split(":")[0]] || `ink${(i % 7) + 1}`;

function section(id, title, about, ...children) {
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), about && el("p", { class: "quiet" }, about), children);
}

const byName = (policies, name) => policies.find((one) => one.policy === name);
const bestOf = (policies) => policies.reduce((best, one) => (one.iteration_s < best.iteration_s ? one : best));
const sumOf = (plan) => plan.end_s.reduce((sum, end, m) => sum + (end - plan.start_s[m]), 0);

// ---- The answer in words ----

function wordsSection(current) {
  const { policies, trace, cluster } = current;
  const best = byName(policies, "optimal") || bestOf(policies);
  const wfbp = byName(policies, "wfbp"), single = byName(policies, "single");
  const usual = wfbp.iteration_s < single.iteration_s ? wfbp : single;
  const share = (value) => 100 * (1 - value / usual.iteration_s);
  const b = (text) => el("b", {}, text);
  const exposed = (value) => el("span", { class: "exposed" }, `${seconds(value)} exposed`);
  const saved = share(best.iteration_s), most = Math.max(0, share(best.lower_bound_s));
  const saves = usual.iteration_s > 0 ? [
    " That ", saved >= -0.05 ? "saves " : "loses ", b(`${fixed(Math.abs(saved), 1)}%`), " of the step; no plan can save more than ", b(`${fixed(most, 1)}%`), "."] : [];
  return el("section", { id: "words", class: "words", "aria-label": "Summary" },
    el("p", {}, "On ", b(`${cluster.workers} workers`), ` of ${short(cluster.name)}, a step of ${short(trace.model)} computes for `, b(seconds(best.compute_s)),
      `. Sent the usual way (${usual.policy}, the better of wfbp and single), its ${plural(trace.counts.length, "gradient")} take `, b(seconds(sumOf(usual))),
      " of communication, ", exposed(usual.exposed_s), `: ${seconds(usual.iteration_s)} per step.`),
    el("p", {}, `The best plan (${best.policy}) sends ${plural(best.count.length, "message")}, ${seconds(sumOf(best))} of communication, `, exposed(best.exposed_s),
      ": ", b(`${seconds(best.iteration_s)} per step`), `, ${percent(best.iteration_s > 0 ? best.compute_s / best.iteration_s : 1)} of it computation.`, saves));
}

// ---- Policies ----

function policySection(current) {
  const { policies } = current;
  const best = bestOf(policies);
  const columns = [["policy", "text"], ["messages", "count"], ["iteration", "s"], ["exposed", "s"], ["efficiency", "percent"], ["slower than the best", "ratio"]];
  const rows = policies.map((one) => [one.policy, one.count.length, one.iteration_s, one.exposed_s,
    one.iteration_s > 0 ? one.compute_s / one.iteration_s : 1, best.iteration_s > 0 ? one.iteration_s / best.iteration_s : 1]);
  rows.push(["lower bound", null, best.lower_bound_s, best.lower_bound_s - best.compute_s, null, null]);
  const picture = barPlot({ label: "The step under every policy: computation and exposed communication",
    rows: policies.map((one) => ({ name: one.policy, strong: one.policy === "optimal", note: `${seconds(one.iteration_s)}, ${plural(one.count.length, "message")}`,
      parts: [{ value: one.compute_s, class: "backward", text: `${one.policy}: computation ${seconds(one.compute_s)}` },
        { value: one.exposed_s, class: "exposed", text: `${one.policy}: exposed communication ${seconds(one.exposed_s)}` }] })),
    bound: { value: best.lower_bound_s, text: `no plan is faster than ${seconds(best.lower_bound_s)}` } });
  return section("policies", "Policies", "A step under each: computation, and the communication that it does not hide.",
    figure({ name: "policies", picture, columns, rows, chosen: (row) => row[0] === "optimal" }));
}

// ---- The plan ----

function planSection(current, choose) {
  const { policies, names } = current;
  const plan = byName(policies, current.policy) || bestOf(policies);
  const first = firstOf(plan.count);
  const columns = [["message", "count"], ["tensors", "count"], ["size", "bytes"], ["ready", "s"], ["start", "s"], ["end", "s"], ["takes", "s"], ["exposed", "s"], ["first tensor", "text"], ["last tensor", "text"]];
  const rows = Array.from(plan.count, (count, m) => [m + 1, count, plan.bytes[m], plan.ready_s[m], plan.start_s[m], plan.end_s[m], plan.end_s[m] - plan.start_s[m],
    Math.max(0, plan.end_s[m] - Math.max(plan.start_s[m], plan.compute_s)), names[first[m]], names[first[m] + count - 1]]);
  const select = el("select", { "aria-label": "policy", onchange: (event) => choose(event.target.value) },
    policies.map((one) => el("option", { value: one.policy, selected: one === plan }, one.policy)));
  return section("plan", "The plan", "Messages in the order in which they are sent; times from the start of the forward pass.",
    el("div", { class: "bar" }, "policy", select, el("span", {}, plural(plan.count.length, "message")), el("span", { class: "spread" }),
      el("button", { type: "button", "data-export": "csv", onclick: () => download(`plan-${plan.policy}.csv`, "text/csv", csvOf(columns, rows)) }, "CSV")),
    tableOf(columns, rows));
}

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

function scalingFigure(name, rows, log) {
  const series = scalingRows(rows);
  const algorithms = new Set(series.map((one) => one.algorithm));
  const workers = rows.map((row) => row.workers), speedups = rows.map((row) => row.speedup);
  const low = least(workers), high = greatest(workers);
  const top = log ? high : greatest(speedups) * 1.1;
  const bottom = log ? least(speedups.filter((value) => value > 0), 1) : 0;
  const columns = [["workers", "count"], ["algorithm", "text"], ["policy", "text"], ["messages", "count"], ["iteration", "s"], ["exposed", "s"], ["speed-up", "ratio"], ["efficiency", "percent"]];
  const ideal = log ? [[low, low], [high, high]] : [[low, low], [Math.min(high, top), Math.min(high, top)]];
  const picture = linePlot({ label: "Speed-up over the number of workers", ideal: ideal[1][0] > low ? ideal : null,
    x: { label: "workers", low, high, log: log ? 2 : 0, most: 12 }, y: { label: "speed-up over one worker", low: bottom, high: Math.max(top, bottom * 1.01), log: log ? (high > 64 ? 4 : 2) : 0 },
    series: series.map((one, i) => ({ name: algorithms.size > 1 ? `${one.policy}, ${one.algorithm}` : one.policy, ink: algorithms.size > 1 ? `ink${(i % 7) + 1}` : inkOf(one.policy, i), strong: one.policy === "optimal", dots: true,
      points: one.rows.map((row) => [row.workers, row.speedup, `${row.policy}, ${row.workers} workers: speed-up ${fixed(row.speedup, 2)}, ${seconds(row.iteration_s)} per step`]) })) });
  return figure({ name, picture, columns, rows: rows.map((row) => [row.workers, row.algorithm, row.policy, row.messages, row.iteration_s, row.exposed_s, row.speedup, row.efficiency]) });
}

function scalingSection(id, title, about, rows, log, setLog) {
  if (!rows.length || new Set(rows.map((row) => row.workers)).size < 2) return null;
  const button = (text, value) => el("button", { type: "button", "aria-pressed": String(log === value), onclick: () => setLog(value) }, text);
  return section(id, title, about, el("div", { class: "bar", role: "group", "aria-label": "axes" }, button("logarithmic", true), button("linear", false)),
    scalingFigure(id, rows, log));
}

// ---- T(M) ----

function costSection(cluster) {
  const line = (size) => cluster.a_s + cluster.b_s_per_byte * size;
  const samples = Array.from(cluster.sample_bytes, (size, i) => [size, cluster.sample_seconds[i]]).filter(([size]) => size > 0);
  const sizes = samples.length ? samples.map(([size]) => size) : [1024, 2 ** 28];
  const low = least(sizes), high = greatest(sizes, low * 4);
  const points = Array.from({ length: 81 }, (_, i) => low * (high / low) ** (i / 80)).map((size) => [size, line(size)]);
  const times = [...points, ...samples].map(([, time]) => time).filter((time) => time > 0);
  if (!times.length) return null;
  const columns = samples.length ? [["bytes", "count"], ["measured", "s"], ["a + b M", "s"], ["error", "percent"]] : [["bytes", "count"], ["time", "s"]];
  const rows = samples.length ? samples.map(([size, time]) => [size, time, line(size), (line(size) - time) / time])
    : Array.from({ length: 10 }, (_, k) => [1024 * 4 ** k, line(1024 * 4 ** k)]);
  const picture = linePlot({ label: "Time of one collective over the size of its message",
    x: { label: "size of the message", low, high, log: 4, format: bytes, most: 8 }, y: { label: "time", low: least(times), high: greatest(times), log: 10, format: seconds },
    series: [{ name: samples.length ? "fit a + b M" : "a + b M", ink: "ink1", points },
      { name: "measured", ink: "ink7", line: false, dots: true, points: samples.map(([size, time]) => [size, time, `${bytes(size)}: measured ${seconds(time)}, fit ${seconds(line(size))}`]) }] });
  const fit = samples.length && cluster.r2 !== undefined ? ` Fitted to ${samples.length} samples: R\u00b2 ${fixed(cluster.r2, 4)}, largest error ${percent(cluster.max_relative_error)}.` : "";
  return section("cost", "What a message costs", `T(M) = ${seconds(cluster.a_s)} + M \u00d7 ${nanoseconds(cluster.b_s_per_byte)} for a message of M bytes among ${cluster.workers} workers.${fit}`,
    figure({ name: "cost", picture, columns, rows }));
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
  const first = bins.findIndex(Boolean), total = trace.counts.reduce((sum, count) => sum + count, 0) * elementBytes;
  const shown = Array.from({ length: bins.length - first }, (_, i) => ({ low: 4 ** (first + i), ...(bins[first + i] || { tensors: 0, bytes: 0 }) }));
  const columns = [["from", "bytes"], ["below", "bytes"], ["tensors", "count"], ["together", "bytes"], ["share of bytes", "percent"]];
  const rows = shown.map((bin) => [bin.low, bin.low * 4, bin.tensors, bin.bytes, total ? bin.bytes / total : 0]);
  const picture = columnPlot({ label: "How many tensors there are of each size",
    x: { label: "size of a tensor", low: shown[0].low, high: shown[shown.length - 1].low * 4, log: 4, format: bytes, most: 8 },
    y: { label: "tensors", low: 0, high: greatest(shown.map((bin) => bin.tensors)) * 1.1 },
    columns: shown.map((bin) => ({ from: bin.low, to: bin.low * 4, value: bin.tensors, text: `${bytes(bin.low)} to ${bytes(bin.low * 4)}: ${plural(bin.tensors, "tensor")}, ${bytes(bin.bytes)}` })) });
  return section("sizes", "Tensor sizes", `${plural(trace.counts.length, "gradient tensor")}, ${bytes(total)}: few hold most bytes, most hold few.`,
    figure({ name: "sizes", picture, columns, rows }));
}

// ---- Measured beside predicted ----

// Rows as `replay` prints them.
function measuredFigure(name, measured) {
  const columns = [["policy", "text"], ["workers", "count"], ["messages", "count"], ["predicted", "s"], ["measured", "s"], ["difference", "percent"], ["spread", "percent"], ["predicted exposed", "s"], ["measured exposed", "s"]];
  const rows = measured.map((row) => [row.policy, row.workers, row.messages, row.predicted_iteration_s, row.measured_iteration_s,
    row.measured_iteration_s / row.predicted_iteration_s - 1, row.spread, row.predicted_exposed_s, row.measured_iteration_s - row.measured_compute_s]);
  const parts = (what, whole, compute) => [{ value: Math.min(whole, compute), class: "backward", text: `${what}: computation ${seconds(compute)}` },
    { value: whole - compute, class: "exposed", text: `${what}: exposed communication ${signedSeconds(whole - compute)}` }];
  const picture = barPlot({ label: "Measured beside predicted", rows: measured.flatMap((row) => [
    { name: `${row.policy}, predicted`, note: seconds(row.predicted_iteration_s), parts: parts(`${row.policy}, predicted`, row.predicted_iteration_s, row.predicted_iteration_s - row.predicted_exposed_s) },
    { name: "measured", note: `${seconds(row.measured_iteration_s)} (${row.measured_iteration_s >= row.predicted_iteration_s ? "+" : ""}${percent(row.measured_iteration_s / row.predicted_iteration_s - 1)})`,
      parts: parts(`${row.policy}, measured`, row.measured_iteration_s, row.measured_compute_s) }]) });
  return figure({ name, picture, columns, rows });
}

function replaySection(replay, number) {
  const id = number ? `replay-${number + 1}` : "replay";
  return section(id, "Measured beside predicted", `From ${short(replay.origin)}: the median of several rounds on ${plural(replay.rows[0].workers, "worker")}.`, measuredFigure(id, replay.rows));
}

// ---- Training ----

function lossFigure(name, rows) {
  const steps = [...rows.progress, ...rows.epoch].map((row) => row.step);
  const losses = [...rows.progress.map((row) => row.loss), ...rows.epoch.map((row) => row.test_loss)];
  const picture = linePlot({ label: "Loss over steps", x: { label: "step", low: least(steps), high: greatest(steps) },
    y: { label: "loss", low: 0, high: greatest(losses) * 1.05 || 1 },
    series: [{ name: "training loss", ink: "ink1", points: rows.progress.map((row) => [row.step, row.loss]) },
      { name: "test loss", ink: "ink4", dots: true, points: rows.epoch.map((row) => [row.step, row.test_loss,
        `epoch ${row.epoch}: test loss ${fixed(row.test_loss, 4)}, accuracy ${percent(row.test_accuracy)}`]) }] });
  const columns = [["epoch", "count"], ["step", "count"], ["training loss", "ratio"], ["images per second", "ratio"], ["exposed", "percent"], ["test loss", "ratio"], ["test accuracy", "percent"]];
  const table = [...rows.progress.map((row) => [row.epoch, row.step, row.loss, row.images_per_s, row.exposed_share, null, null]),
    ...rows.epoch.map((row) => [row.epoch, row.step, null, null, null, row.test_loss, row.test_accuracy])].sort((a, b) => a[1] - b[1]);
  return figure({ name, picture, columns, rows: table });
}

function trainingSection(training, number) {
  const id = number ? `training-${number + 1}` : "training", { rows } = training;
  const last = rows.summary[rows.summary.length - 1], epoch = rows.epoch[rows.epoch.length - 1];
  const about = last ? `${short(last.model)} by ${plural(last.workers, "worker")}, ${plural(last.steps, "step")} of ${last.batch} images each: ${seconds(last.iteration_s)} per step under ${last.policy}, ` +
    `${signedSeconds(last.iteration_s - last.compute_s)} of it exposed communication${last.predicted_s > 0 ? `; predicted were ${seconds(last.predicted_s)}` : ""}.` : "";
  return section(id, "Training", `From ${short(training.origin)}. ${about}${epoch ? ` Test accuracy ${percent(epoch.test_accuracy)} after epoch ${epoch.epoch}.` : ""}`,
    rows.progress.length + rows.epoch.length > 1 ? lossFigure(id, rows) : null,
    rows.compare.length ? measuredFigure(`${id}-policies`, rows.compare.map((row) => ({ ...row, predicted_iteration_s: row.predicted_s, measured_iteration_s: row.iteration_s,
      measured_compute_s: row.compute_s, predicted_exposed_s: Math.max(0, row.predicted_s - row.compute_s) }))) : null);
}
