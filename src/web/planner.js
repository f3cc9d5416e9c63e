// The planner: the library's own C, compiled to WebAssembly (src/web/planner.c).

const ALGORITHMS = [
  "binary-tree",
  "recursive-doubling",
  "recursive-halving-doubling",
  "double-binary-trees",
  "ring",
  "parameter-server",
];
const COLLECTIVES = ["all-reduce", "reduce-scatter", "all-gather", "push", "pull"];
const DTYPES = ["f32", "f16", "bf16", "f64"]; // as in trace.h; likewise the algorithms in cluster.h
const DTYPE_BYTES = { f32: 4, f16: 2, bf16: 2, f64: 8 };

class Planner {
  // Null if the page was made without it, or the browser cannot run it.
  static async load(base64) {
    if (!base64 || typeof WebAssembly === "undefined") return null;
    const code = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
    const nothing = new Proxy({}, { get: () => () => 52 }); // system calls: not available
    const { instance } = await WebAssembly.instantiate(code, { wasi_snapshot_preview1: nothing });
    instance.exports._initialize();
    return new Planner(instance.exports);
  }

  constructor(c) {
    this.c = c;
  }

  string(at) {
    const memory = new Uint8Array(this.c.memory.buffer);
    return new TextDecoder().decode(memory.subarray(at, memory.indexOf(0, at)));
  }

  numbers(at, count) {
    return new Float64Array(this.c.memory.buffer, at, count);
  }

  check(status) {
    if (status !== 0) throw new Error(this.string(this.c.error_message()));
  }

  // Calls `call` with the addresses of copies of the arrays.
  withArrays(arrays, call) {
    const at = arrays.map((array) => this.c.allocate(8 * array.length));
    try {
      if (at.includes(0)) throw new Error("out of memory");
      arrays.forEach((array, i) => this.numbers(at[i], array.length).set(array));
      return call(...at);
    } finally {
      at.forEach((one) => this.c.release(one));
    }
  }

  setTrace(trace, names) {
    const text = new TextEncoder().encode(names.map((name) => `${name}\0`).join(""));
    const at = this.c.allocate(text.length);
    if (!at) throw new Error("out of memory");
    new Uint8Array(this.c.memory.buffer).set(text, at);
    try {
      this.withArrays([trace.counts, trace.backward_s, trace.forward_start_s], (counts, backward, needed) =>
        this.check(this.c.set_trace(trace.counts.length, counts, backward, needed, at, trace.forward_s)),
      );
    } finally {
      this.c.release(at);
    }
  }

  // The link constants that a measured a and b imply for an algorithm.
  findLink(cluster, algorithm) {
    const at = this.c.find_link(
      ALGORITHMS.indexOf(algorithm),
      cluster.a_s,
      cluster.b_s_per_byte,
      cluster.workers,
      cluster.servers,
    );
    if (!at) throw new Error(this.string(this.c.error_message()));
    const [alpha_s, beta_s_per_byte] = this.numbers(at, 2);
    return { alpha_s, beta_s_per_byte, gamma_s_per_byte: 0 };
  }

  setCluster(c) {
    if (c.kind === "link")
      this.check(
        this.c.set_link(
          c.workers,
          c.alpha_s,
          c.beta_s_per_byte,
          c.gamma_s_per_byte,
          ALGORITHMS.indexOf(c.algorithm),
          c.servers,
        ),
      );
    else if (c.kind === "samples")
      this.withArrays([c.sample_bytes, c.sample_seconds], (sizes, times) =>
        this.check(this.c.set_samples(c.workers, c.sample_bytes.length, sizes, times)),
      );
    else this.check(this.c.set_cost(c.workers, c.a_s, c.b_s_per_byte));
    for (const one of c.collectives.filter(({ given }) => given))
      this.withArrays([one.sample_bytes, one.sample_seconds], (sizes, times) =>
        this.check(
          this.c.set_collective(
            COLLECTIVES.indexOf(one.kind),
            one.a_s,
            one.b_s_per_byte,
            one.sample_bytes.length,
            sizes,
            times,
          ),
        ),
      );
    this.check(this.c.set_beside(c.beside_message, c.beside_compute));
  }

  // The costs of the cluster's collectives: that of an all-reduce, and those of the others.
  lines(cluster) {
    const n = this.numbers(this.c.find_lines(), 2 * COLLECTIVES.length);
    const line = (kind) => ({ a_s: n[2 * kind], b_s_per_byte: n[2 * kind + 1] });
    return {
      ...line(0),
      collectives: cluster.collectives.map((one) => ({ ...one, ...line(COLLECTIVES.indexOf(one.kind)) })),
    };
  }

  // The same data as in a file, for any trace and cluster; scaling takes longer and is left to `scale`.
  plan(cluster, factor, dtype, parameters) {
    this.setCluster(cluster);
    this.check(this.c.plan(factor, DTYPES.indexOf(dtype), DTYPES.indexOf(parameters)));
    const policies = [];
    for (let i = 0; i < this.c.plan_count(); i++) policies.push(this.readPlan(i));
    return { policies };
  }

  scale() {
    this.check(this.c.scale());
    return this.readScaling();
  }

  readPlan(index) {
    const policy = this.string(this.c.plan_policy(index));
    const at = this.c.plan_numbers(index);
    const [forward_s, compute_s, iteration_s, exposed_s, lower_bound_s, overlaps, count, stalls] =
      this.numbers(at, 8);
    const n = this.numbers(at + 64, 7 * count + 3 * stalls);
    const column = (k) => Float64Array.from({ length: count }, (_, m) => n[7 * m + k]);
    const stall = (k) => Float64Array.from({ length: stalls }, (_, i) => n[7 * count + 3 * i + k]);
    return {
      policy,
      forward_s,
      compute_s,
      iteration_s,
      exposed_s,
      lower_bound_s,
      overlaps_forward: overlaps === 1,
      stall_tensor: stall(0),
      stall_start_s: stall(1),
      stall_end_s: stall(2),
      kind: column(0),
      first: column(1),
      count: column(2),
      bytes: column(3),
      ready_s: column(4),
      start_s: column(5),
      end_s: column(6),
    };
  }

  readScaling() {
    const count = this.c.scaling_count();
    const algorithm = this.string(this.c.scaling_algorithm());
    const policies = Array.from({ length: count }, (_, i) => this.string(this.c.scaling_policy(i)));
    const n = this.numbers(this.c.scaling_numbers(), 6 * count);
    return policies.map((policy, i) => ({
      workers: n[6 * i],
      algorithm,
      policy,
      messages: n[6 * i + 1],
      iteration_s: n[6 * i + 2],
      exposed_s: n[6 * i + 3],
      speedup: n[6 * i + 4],
      efficiency: n[6 * i + 5],
    }));
  }
}
