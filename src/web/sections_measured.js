// Measurements: runs beside their predictions, and training.

// Rows as printed by `replay`.
function measuredFigure(name, measured) {
  const columns = [
    ["policy", "text"],
    ["workers", "count"],
    ["messages", "count"],
    ["predicted", "s"],
    ["measured", "s"],
    ["difference", "percent"],
    ["spread", "percent"],
    ["predicted exposed", "s"],
    ["measured exposed", "s"],
  ];
  const rows = measured.map((row) => [
    row.policy,
    row.workers,
    row.messages,
    row.predicted_iteration_s,
    row.measured_iteration_s,
    row.measured_iteration_s / row.predicted_iteration_s - 1,
    row.spread,
    row.predicted_exposed_s,
    row.measured_iteration_s - row.measured_compute_s,
  ]);
  const parts = (what, whole, compute) => [
    { value: Math.min(whole, compute), class: "backward", text: `${what}: computation ${seconds(compute)}` },
    {
      value: whole - compute,
      class: "exposed",
      text: `${what}: exposed communication ${signedSeconds(whole - compute)}`,
    },
  ];
  const picture = barPlot({
    label: "Measured and predicted",
    rows: measured.flatMap((row) => [
      {
        name: `${row.policy}, predicted`,
        note: seconds(row.predicted_iteration_s),
        parts: parts(
          `${row.policy}, predicted`,
          row.predicted_iteration_s,
          row.predicted_iteration_s - row.predicted_exposed_s,
        ),
      },
      {
        name: "measured",
        note: `${seconds(row.measured_iteration_s)} (${row.measured_iteration_s >= row.predicted_iteration_s ? "+" : ""}${percent(row.measured_iteration_s / row.predicted_iteration_s - 1)})`,
        parts: parts(`${row.policy}, measured`, row.measured_iteration_s, row.measured_compute_s),
      },
    ]),
  });
  return figure({ name, picture, columns, rows });
}

function replaySection(replay, number) {
  const id = number ? `replay-${number + 1}` : "replay";
  return section(
    id,
    "Measured and predicted",
    `From ${short(replay.origin)}: the median of several rounds on ${plural(replay.rows[0].workers, "worker")}.`,
    measuredFigure(id, replay.rows),
  );
}

// ---- Training ----

function lossFigure(name, rows) {
  const steps = [...rows.progress, ...rows.epoch].map((row) => row.step);
  const losses = [...rows.progress.map((row) => row.loss), ...rows.epoch.map((row) => row.test_loss)];
  const picture = linePlot({
    label: "Loss over steps",
    x: { label: "step", low: least(steps), high: greatest(steps) },
    y: { label: "loss", low: 0, high: greatest(losses) * 1.05 || 1 },
    series: [
      { name: "training loss", ink: "ink1", points: rows.progress.map((row) => [row.step, row.loss]) },
      {
        name: "test loss",
        ink: "ink4",
        dots: true,
        points: rows.epoch.map((row) => [
          row.step,
          row.test_loss,
          `epoch ${row.epoch}: test loss ${fixed(row.test_loss, 4)}, accuracy ${percent(row.test_accuracy)}`,
        ]),
      },
    ],
  });
  const columns = [
    ["epoch", "count"],
    ["step", "count"],
    ["training loss", "ratio"],
    ["images per second", "ratio"],
    ["exposed", "percent"],
    ["test loss", "ratio"],
    ["test accuracy", "percent"],
  ];
  const table = [
    ...rows.progress.map((row) => [
      row.epoch,
      row.step,
      row.loss,
      row.images_per_s,
      row.exposed_share,
      null,
      null,
    ]),
    ...rows.epoch.map((row) => [row.epoch, row.step, null, null, null, row.test_loss, row.test_accuracy]),
  ].sort((a, b) => a[1] - b[1]);
  return figure({ name, picture, columns, rows: table });
}

function trainingSection(training, number) {
  const id = number ? `training-${number + 1}` : "training",
    { rows } = training;
  const last = rows.summary[rows.summary.length - 1],
    epoch = rows.epoch[rows.epoch.length - 1];
  const about = last
    ? `${short(last.model)} by ${plural(last.workers, "worker")}, ${plural(last.steps, "step")} of ${last.batch} images each: ${seconds(last.iteration_s)} per step under ${last.policy}, ` +
      `${signedSeconds(last.iteration_s - last.compute_s)} of it exposed communication${last.predicted_s > 0 ? `; the prediction was ${seconds(last.predicted_s)}` : ""}.`
    : "";
  return section(
    id,
    "Training",
    `From ${short(training.origin)}. ${about}${epoch ? ` Test accuracy ${percent(epoch.test_accuracy)} after epoch ${epoch.epoch}.` : ""}`,
    rows.progress.length + rows.epoch.length > 1 ? lossFigure(id, rows) : null,
    rows.compare.length
      ? measuredFigure(
          `${id}-policies`,
          rows.compare.map((row) => ({
            ...row,
            predicted_iteration_s: row.predicted_s,
            measured_iteration_s: row.iteration_s,
            measured_compute_s: row.compute_s,
            predicted_exposed_s: Math.max(0, row.predicted_s - row.compute_s),
          })),
        )
      : null,
  );
}
