// One run: its numbers, its curves, and its settings, those first in which runs differ.

function openPanel(run) {
  if (!run) return;
  const panel = $("panel");
  tip.hide();
  highlight(null);
  $("panel-title").textContent = data.arms[run.arm].title;
  const body = $("panel-body");
  body.replaceChildren(repetitions(run));
  if (!panel.open) panel.showModal(); // now it has a width, which charts need
  $("panel-title").focus();
  body.append(numbers(run));
  drawRun(body, run);
  body.append(...settings(run));
  panel.scrollTop = 0;
}

// The runs of the same arm, to go from one to another.
function repetitions(run) {
  const same = data.runs.filter((other) => other.arm === run.arm);
  const name = (one) => `seed ${one.seed}, ${arrow(one.tasks)}`;
  const facts = [element("p", {}, `Run ${run.name}: ${name(run)}, ${lastStep([run])} steps.`), ...unlearntWords([run]).map((words) => element("p", {}, words))];
  if (same.length > 1) {
    const select = element("select", {}, ...same.map((one) => element("option", { value: data.runs.indexOf(one), selected: one === run }, name(one))));
    select.addEventListener("change", () => openPanel(data.runs[Number(select.value)]));
    facts.push(element("label", {}, `One of ${same.length} runs of this arm `, select));
  }
  return element("div", { class: "facts" }, ...facts);
}

function numbers(run) {
  const rows = columnsShown().map(([index, column]) => [column.unit ? `${column.title} (${column.unit})` : column.title, format(run.values[index])]);
  const table = element("table", { class: "pairs" });
  fillTable(table, [data.metrics[state.metric].title, "this run"], rows);
  return element("div", { class: "scroll" }, table);
}

function drawRun(body, run) {
  const host = element("div", { class: "charts" });
  body.append(host);
  const metric = data.metrics[state.metric];
  const x = { title: "optimizer step", domain: [0, lastStep([run])] };
  const bands = bandsOf(run.stretches);
  const curves = run.curves[state.metric];
  const look = { look: looks[run.arm].look, marker: looks[run.arm].marker, filled: looks[run.arm].filled, line: true };
  const byTask = (rows, unit) => data.tasks.flatMap((task, index) => {
    const points = linePoints(curves.grid, rows[index], (step, value) => [task, `step ${step}: ${format(value)}${unit}`]);
    return points.length ? [{ ...look, dash: DASHES[index % DASHES.length], end: task, points }] : [];
  });
  const charts = [];
  if (curves) {
    charts.push({ caption: `Validation ${metric.title} of every task`, y: { log: metric.log }, series: byTask(curves.scores, "") });
    charts.push({ caption: "Worse than when its own training ended; below zero: better", y: { zero: true }, series: byTask(curves.gaps, metric.log ? " nats" : "") });
  }
  for (const [index, trace] of run.traces.entries()) {
    if (!trace) continue;
    const points = trace[0].map((step, at) => ({
      x: step, y: trace[1][at], size: 0, gap: at > 0 && typeof trace[1][at - 1] === "string",
      text: [data.traces[index], `step ${step}: ${format(trace[1][at])}`],
    }));
    charts.push({ caption: data.traces[index], y: {}, series: [{ ...look, points }], height: 190 });
  }
  plotAll(host, charts.filter((chart) => chart.series.length).map((chart) => ({ title: chart.caption, x, bands, ...chart })));
}

function settings(run) {
  const pairs = (rows) => {
    const table = element("table", { class: "pairs settings" });
    fillTable(table, ["setting", "value"], rows);
    return element("div", { class: "scroll" }, table);
  };
  const every = [...run.settings, ...data.common].sort(([a], [b]) => (a < b ? -1 : 1));
  const title = run.settings.length ? "Settings in which runs differ" : "All runs have the same settings";
  return [
    element("h3", {}, title),
    ...(run.settings.length ? [pairs(run.settings)] : []),
    element("details", {}, element("summary", {}, `All ${every.length} settings`), pairs(every)),
  ];
}

function wirePanel() {
  $("close").addEventListener("click", () => $("panel").close());
  $("panel").addEventListener("close", tip.hide);
  $("panel").addEventListener("click", (event) => {
    if (event.target === $("panel")) $("panel").close(); // the ground beside it
  });
}
