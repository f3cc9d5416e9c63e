// Timelines as rows: each has a lane of computation and one of messages, all on one time axis.
// Spans are stored as sorted columns (start_s, end_s, …), so that only spans in view are processed.

// Kinds of spans, by number (src/timeline). An all-reduce fills its lane; of its halves, one is drawn in
// the upper part and the other in the lower, so that they differ without colours, too.
const SPANS = [
  { name: "forward", ink: "--forward" },
  { name: "backward", ink: "--backward" },
  { name: "communication", ink: "--hidden", operation: true, title: "message" },
  { name: "reduce-scatter", ink: "--scatter", operation: true, part: "upper" },
  { name: "all-gather", ink: "--gather", operation: true, part: "lower" },
  { name: "push", ink: "--scatter", operation: true, part: "upper" },
  { name: "pull", ink: "--gather", operation: true, part: "lower" },
  { name: "stall", ink: "--stall" },
  { name: "next-forward", ink: "--forward" },
];
const FORWARD = 0,
  BACKWARD = 1,
  MESSAGE = 2,
  STALL = 7,
  NEXT_FORWARD = 8;
const kindOf = (number) => (number === MESSAGE ? "all-reduce" : SPANS[number].name);

// ---- Rows ----

// The computation of a trace, `factor` times as long, and the bytes of its gradients.
function computeLane(trace, factor, elementBytes) {
  const count = trace.counts.length + 1;
  const lane = {
    kind: new Uint8Array(count).fill(BACKWARD),
    start_s: new Float64Array(count),
    end_s: new Float64Array(count),
    first: new Float64Array(count),
    count: new Float64Array(count).fill(1),
    bytes: new Float64Array(count),
  };
  let now = trace.forward_s * factor;
  lane.kind[0] = FORWARD;
  lane.end_s[0] = now;
  lane.count[0] = 0;
  for (let i = 1; i < count; i++) {
    lane.start_s[i] = now;
    now += trace.backward_s[i - 1] * factor;
    lane.end_s[i] = now;
    lane.first[i] = i - 1;
    lane.bytes[i] = trace.counts[i - 1] * elementBytes;
  }
  return lane;
}

// The next forward pass, which stalls where a plan overlaps it, and otherwise begins when all is over.
function nextLane(plan) {
  const spans = [];
  const add = (kind, start, end, first) => {
    if (end > start) spans.push({ kind, start, end, first });
    return Math.max(start, end);
  };
  let now = plan.overlaps_forward ? plan.compute_s : plan.iteration_s;
  plan.stall_start_s.forEach((start, i) => {
    now = add(NEXT_FORWARD, now, start, 0);
    now = add(STALL, now, plan.stall_end_s[i], plan.stall_tensor[i]);
  });
  // A file need not contain the stalls; then the pass is not shown.
  if (!plan.overlaps_forward || plan.stall_start_s.length || !(plan.exposed_s > 0))
    add(NEXT_FORWARD, now, plan.iteration_s + plan.forward_s, 0);
  const column = (pick) => Float64Array.from(spans, pick);
  return {
    kind: column(({ kind }) => kind),
    start_s: column(({ start }) => start),
    end_s: column(({ end }) => end),
    first: column(({ first }) => first),
    count: column(({ kind }) => (kind === STALL ? 1 : 0)),
  };
}

const NOTHING = { kind: [], start_s: [], end_s: [], first: [], count: [] };
const endOf = (lane) => lane.end_s.reduce((most, value) => Math.max(most, value), 0);

// When communication is exposed: while a forward pass stalls, otherwise after computation. A timeline
// that overlaps the next forward pass need not show it; it then begins one period after this one.
function exposedTimes(period, end, next) {
  if (!period) return [[end, Infinity]];
  const times = [];
  next.kind.forEach((kind, i) => {
    if (kind === STALL) times.push([next.start_s[i], next.end_s[i]]);
  });
  if (period > end && endOf(next) <= end) times.push([end, period]);
  return times;
}

// With `next`, the next step's forward pass is shown, for comparison with plans that overlap it.
function rowOfPlan(plan, names, label, lane, next) {
  const whole = {
    kind: [FORWARD, BACKWARD],
    start_s: [0, plan.forward_s],
    end_s: [plan.forward_s, plan.compute_s],
    first: [0, 0],
    count: [0, names.length],
  };
  const after = next || plan.overlaps_forward ? nextLane(plan) : NOTHING;
  const messages = {
    kind: plan.kind,
    start_s: plan.start_s,
    end_s: plan.end_s,
    ready_s: plan.ready_s,
    bytes: plan.bytes,
    count: plan.count,
    first: plan.first,
  };
  return {
    label,
    names,
    compute: lane || whole,
    next: after,
    messages,
    overlaps: plan.overlaps_forward,
    beside: !plan.overlaps_forward, // the next pass is not part of the timeline
    compute_s: plan.compute_s,
    iteration_s: plan.iteration_s,
    end_s: Math.max(plan.iteration_s, endOf(after), endOf(messages)),
    exposed: exposedTimes(plan.overlaps_forward ? plan.iteration_s : 0, plan.compute_s, after),
  };
}

// A timeline from a file: its spans by lane. Stalls and the next pass are painted over computation.
function rowOfTimeline(timeline, names) {
  const pick = (wanted) => {
    const at = [];
    timeline.kind.forEach((kind, i) => {
      if (wanted(kind)) at.push(i);
    });
    const lane = {};
    for (const name of ["kind", "start_s", "end_s", "ready_s", "first", "count", "bytes"])
      lane[name] = Float64Array.from(at, (i) => timeline[name][i]);
    return lane;
  };
  const compute = pick((kind) => kind === FORWARD || kind === BACKWARD),
    next = pick((kind) => kind === STALL || kind === NEXT_FORWARD),
    messages = pick((kind) => SPANS[kind].operation);
  const end = endOf(compute),
    overlaps = timeline.period_s > 0;
  let stalled = 0; // in this step's own forward pass, as measured by an engine
  next.kind.forEach((kind, i) => {
    const [from, to] = [next.start_s[i], next.end_s[i]];
    if (kind === STALL && (from + to) / 2 < end) stalled += to - from;
  });
  const end_s = Math.max(end, endOf(messages), endOf(next));
  return {
    label: timeline.title,
    names,
    compute,
    next,
    messages,
    overlaps,
    compute_s: end - stalled,
    iteration_s: overlaps ? timeline.period_s : end_s,
    end_s,
    exposed: exposedTimes(timeline.period_s, end, next),
  };
}

// ---- Looking things up ----

// The first span that ends after a time.
function firstEnding(lane, time) {
  let low = 0,
    high = lane.end_s.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.end_s[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The spans of two lanes in order of time.
function inOrder(...lanes) {
  const all = lanes.flatMap((lane) => Array.from(lane.start_s, (_, i) => [lane, i]));
  return all.sort(([a, i], [b, k]) => a.start_s[i] - b.start_s[k]);
}

function namesOf(row, lane, i) {
  const first = lane.first[i],
    count = lane.count[i];
  if (!count) return "";
  const from = short(row.names[first], 90);
  return count === 1 ? from : `${from} \u2026 ${short(row.names[first + count - 1], 90)}`;
}

// The part of a span during which communication is exposed.
function exposedPart(row, start, end) {
  return row.exposed.reduce((sum, [from, to]) => sum + Math.max(0, Math.min(end, to) - Math.max(start, from)), 0);
}

// Whether a message is hidden: "hidden", "1.2 ms exposed".
function hiding(row, start, end) {
  const exposed = exposedPart(row, start, end);
  return exposed > 1e-12 ? `${seconds(exposed)} exposed` : "hidden";
}

function describeCompute(row, lane, i) {
  const name = namesOf(row, lane, i);
  switch (lane.kind[i]) {
    case FORWARD:
      return ["forward"];
    case NEXT_FORWARD:
      return ["next forward pass"];
    case STALL:
      return ["stall: the forward pass waits for", name];
  }
  if (lane.count[i] !== 1) return ["computation", name];
  const size = lane.bytes && lane.bytes[i] ? `, ${bytes(lane.bytes[i])}` : "";
  return [`backward, ready at ${seconds(lane.end_s[i])}${size}`, name];
}

// `lane` is one of the row's.
function describeSpan(row, lane, i) {
  const length = seconds(lane.end_s[i] - lane.start_s[i]);
  const when = `${seconds(lane.start_s[i])} to ${seconds(lane.end_s[i])}, ${length}`;
  if (lane !== row.messages) {
    const [what, name] = describeCompute(row, lane, i);
    return [what, when, name].filter(Boolean).join("\n");
  }
  const waited = lane.start_s[i] - lane.ready_s[i];
  const kind = lane.kind[i] === MESSAGE ? "" : `${SPANS[lane.kind[i]].name}, `;
  return (
    `${kind}message ${i + 1} of ${lane.start_s.length}: ${plural(lane.count[i], "tensor")}, ${bytes(lane.bytes[i])}\n${when}\n` +
    `ready at ${seconds(lane.ready_s[i])}, waited ${waited > 1e-12 ? seconds(waited) : "0 s"}, ${hiding(row, lane.start_s[i], lane.end_s[i])}\n` +
    namesOf(row, lane, i)
  );
}
