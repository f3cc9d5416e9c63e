// Timelines as rows: for each a lane of computation and one of messages, all on one axis of time.
// Spans are columns (start_s, end_s, …) in order, so that only what is in view is looked at.

const FORWARD = 0,
  BACKWARD = 1,
  MESSAGE = 2;

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

function rowOfPlan(plan, names, label, lane) {
  const whole = {
    kind: [FORWARD, BACKWARD],
    start_s: [0, plan.forward_s],
    end_s: [plan.forward_s, plan.compute_s],
    first: [0, 0],
    count: [0, names.length],
  };
  return {
    label,
    names,
    compute: lane || whole,
    compute_s: plan.compute_s,
    iteration_s: plan.iteration_s,
    messages: {
      start_s: plan.start_s,
      end_s: plan.end_s,
      ready_s: plan.ready_s,
      bytes: plan.bytes,
      count: plan.count,
      first: plan.first,
    },
  };
}

// A timeline from a file: its spans by lane.
function rowOfTimeline(timeline, names) {
  const pick = (wanted) => {
    const at = [];
    timeline.kind.forEach((kind, i) => {
      if ((kind === MESSAGE) === wanted) at.push(i);
    });
    const lane = {};
    for (const name of ["kind", "start_s", "end_s", "ready_s", "first", "count", "bytes"])
      lane[name] = Float64Array.from(at, (i) => timeline[name][i]);
    return lane;
  };
  const compute = pick(false),
    messages = pick(true);
  const end = (lane) => lane.end_s.reduce((most, value) => Math.max(most, value), 0);
  const compute_s = end(compute);
  return {
    label: timeline.title,
    names,
    compute,
    messages,
    compute_s,
    iteration_s: Math.max(compute_s, end(messages)),
  };
}

// ---- Looking things up ----

// The first span that ends behind a time.
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

function namesOf(row, lane, i) {
  const first = lane.first[i],
    count = lane.count[i];
  if (!count) return "";
  const from = short(row.names[first], 90);
  return count === 1 ? from : `${from} \u2026 ${short(row.names[first + count - 1], 90)}`;
}

function describeSpan(row, messages, i) {
  const lane = messages ? row.messages : row.compute;
  const length = seconds(lane.end_s[i] - lane.start_s[i]);
  const when = `${seconds(lane.start_s[i])} to ${seconds(lane.end_s[i])}, ${length}`;
  if (!messages) {
    const what =
      lane.kind[i] === FORWARD
        ? "forward"
        : lane.count[i] === 1
          ? `backward, ready at ${seconds(lane.end_s[i])}${lane.bytes && lane.bytes[i] ? `, ${bytes(lane.bytes[i])}` : ""}`
          : "computation";
    return [what, when, namesOf(row, lane, i)].filter(Boolean).join("\n");
  }
  const exposed = lane.end_s[i] - Math.max(lane.start_s[i], row.compute_s);
  const waited = lane.start_s[i] - lane.ready_s[i];
  return (
    `message ${i + 1} of ${lane.start_s.length}: ${plural(lane.count[i], "tensor")}, ${bytes(lane.bytes[i])}\n${when}\n` +
    `ready at ${seconds(lane.ready_s[i])}, waited ${waited > 1e-12 ? seconds(waited) : "0 s"}${exposed > 1e-12 ? `, ${seconds(exposed)} exposed` : ", hidden"}\n` +
    namesOf(row, lane, i)
  );
}
