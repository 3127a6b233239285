// The page: filters, overview, table, curves, orders. Every number comes from the data; nothing is averaged here.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { metric: 0, order: "0", seed: "all", arms: new Set(data.arms.keys()), sort: null, better: true };
const ALL = "all";
const $ = (id) => document.getElementById(id);
const arrow = (tasks) => tasks.join(" → ");

// --------------------------------------------------------------------------------------------- what is looked at

// How an arm is drawn: colour and marker are its family's, filled if it replays, dashes tell a family's arms apart.
const looks = data.arms.map((arm, index) => {
  const siblings = data.arms.filter((other, at) => at < index && other.family === arm.family).length;
  const family = data.families[arm.family];
  return { key: index, name: arm.title, look: `f${arm.family}`, marker: family.marker, filled: arm.replays, dash: DASHES[siblings % DASHES.length] };
});

const isShown = (run) =>
  state.arms.has(run.arm) &&
  (data.arms[run.arm].bound || state.order === ALL || String(run.order) === state.order) &&
  (state.seed === ALL || String(run.seed) === state.seed);

const shownRuns = () => data.runs.filter(isShown);
const shownArms = () => [...new Set(shownRuns().map((run) => run.arm))];
const runsOf = (arm) => shownRuns().filter((run) => run.arm === arm);
const columnsShown = () => [...data.columns.entries()].filter(([, column]) => column.metric === null || column.metric === state.metric);
const columnOf = (name) => data.columns.findIndex((column) => column.name === `${data.metrics[state.metric].name}/${name}`);

// [mean, low, high, n] of a column for an arm in view, as computed when the page was made.
function cell(arm, column, order = state.order, seed = state.seed) {
  const known = data.arms[arm];
  const found = known.intervals[`${known.bound ? "any" : order}|${seed}`];
  if (found) return found[column];
  const run = data.runs.find((one) => one.arm === arm && String(one.order) === order && String(one.seed) === seed);
  return run && run.values[column] !== null ? [run.values[column], null, null, 1] : null;
}

// The curves of an arm: the mean over its seeds, or those of its one run.
function curvesOf(arm, order) {
  if (state.seed === ALL && data.arms[arm].means[order]) return data.arms[arm].means[order][state.metric];
  const run = runsOf(arm).find((one) => data.arms[arm].bound || String(one.order) === order);
  return run ? run.curves[state.metric] : null;
}

// Tasks that a run of the arm trained and did not learn: that looks like not forgetting, so it is marked.
const unlearntOf = (runs) => [...new Set(runs.flatMap((run) => run.unlearnt))];
const unlearntWords = (runs) => (unlearntOf(runs).length ? [`† did not learn ${unlearntOf(runs).join(", ")}`] : []);
const marked = (arm) => data.arms[arm].title + (unlearntOf(runsOf(arm)).length ? " †" : "");

const curveOrder = () => (state.order === ALL ? "0" : state.order);
const stretchesOf = (order) => data.runs.find((run) => String(run.order) === order && !data.arms[run.arm].bound)?.stretches ?? data.runs[0].stretches;
const lastStep = (runs) => Math.max(1, ...runs.flatMap((run) => run.stretches.map((stretch) => stretch[2])));

function bandsOf(stretches, strong = null) {
  const bands = new Map();
  for (const [task, from, to] of stretches) {
    const key = `${from}-${to}`;
    const known = bands.get(key);
    if (known) Object.assign(known, { text: "all tasks at once", strong: known.strong || task === strong });
    else bands.set(key, { from, to, text: data.tasks[task], strong: task === strong });
  }
  return [...bands.values()];
}

// Points of a line; after a value that is not finite the line begins anew.
function linePoints(grid, values, words) {
  const points = [];
  let gap = false;
  for (const [index, value] of (values ?? []).entries()) {
    if (value === null) continue;
    points.push({ x: data.grids[grid][index], y: value, gap, size: 2, text: words(data.grids[grid][index], value) });
    gap = typeof value === "string";
  }
  return points;
}

function interval([mean, low, high, n]) {
  if (typeof low !== "number") return n === 1 ? format(mean) : `${format(mean)} (n = ${n})`;
  const [m, l, h] = [mean, low, high].map((value) => formatWithin(value, low, high));
  return `${m} (95 % CI ${l} to ${h}, n = ${n})`;
}

// ------------------------------------------------------------------------------------------------------- filters

function fillFilters() {
  const choose = (select, options, key) => {
    select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
    select.value = String(state[key]);
    select.addEventListener("change", () => {
      state[key] = key === "metric" ? Number(select.value) : select.value;
      draw();
    });
  };
  choose($("metric"), [...data.metrics.entries()].map(([index, metric]) => [index, metric.title]), "metric");
  const orders = data.orders.map((order, index) => [index, index ? arrow(order) : `${arrow(order)} (as listed)`]);
  choose($("order"), orders.length > 1 ? [...orders, [ALL, "every order"]] : orders, "order");
  choose($("seed"), [[ALL, "every seed"], ...data.seeds.map((seed) => [seed, `seed ${seed}`])], "seed");
  fillArms();
  $("filters").addEventListener("submit", (event) => event.preventDefault());
}

function fillArms() {
  const boxes = [];
  const set = (wanted) => {
    state.arms = new Set([...data.arms.keys()].filter(wanted));
    draw();
  };
  const button = (text, wanted) => element("button", { type: "button", onclick: () => set(wanted) }, text);
  const groups = data.families.map((family, index) => {
    const mine = [...data.arms.keys()].filter((arm) => data.arms[arm].family === index);
    const whole = element("input", { type: "checkbox", onchange: (event) => set((arm) => (mine.includes(arm) ? event.target.checked : state.arms.has(arm))) });
    boxes.push({ box: whole, arms: mine });
    const rows = mine.map((arm) => {
      const box = element("input", { type: "checkbox", onchange: (event) => set((other) => (other === arm ? event.target.checked : state.arms.has(other))) });
      boxes.push({ box, arms: [arm] });
      return element("label", { "data-key": arm }, box, glyph(looks[arm]), ` ${data.arms[arm].title}`);
    });
    return element("fieldset", {}, element("legend", {}, element("label", {}, whole, ` ${family.title}`)), ...rows);
  });
  const buttons = [button("All", () => true), button("None", () => false), button("Without bounds", (arm) => !data.arms[arm].bound)];
  $("arms").replaceChildren(element("p", { class: "buttons" }, ...buttons), ...groups);
  fillArms.show = () => {
    for (const { box, arms } of boxes) {
      const chosen = arms.filter((arm) => state.arms.has(arm)).length;
      box.checked = chosen === arms.length;
      box.indeterminate = chosen > 0 && chosen < arms.length;
    }
    $("chosen").textContent = `Arms: ${state.arms.size} of ${data.arms.length}`;
  };
}

// -------------------------------------------------------------------------------------------------------- header

function fillHeader() {
  const count = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
  const facts = [count(data.runs.length, "finished run"), count(data.arms.length, "arm"), count(data.seeds.length, "seed"), count(data.orders.length, "order"), arrow(data.tasks)];
  if (data.unfinished.length) facts.push(`${data.unfinished.length} not finished, listed apart`);
  $("facts").textContent = facts.join(" · ");
  const rows = data.tasks.map((task, index) => [task, format(data.data.documents[index]), data.data.tokens[index].toLocaleString("en-US")]);
  fillTable($("tasks"), ["task", "documents to train on", "tokens to train on"], rows);
  $("fingerprint").textContent = `Data ${data.data.fingerprint} · ${data.data.tokens_per_step.toLocaleString("en-US")} tokens a step`;
  $("made").textContent = `Made by trc2 ${data.version} from the diaries of the runs. Nothing on this page is loaded from elsewhere.`;
  $("unfinished").hidden = !data.unfinished.length;
  const unfinished = data.unfinished.map((run) => [run.name, run.title, String(run.seed), arrow(run.tasks), `step ${run.step} of ${run.of}`]);
  fillTable($("unfinished-runs"), ["run", "arm", "seed", "order", "stopped at"], unfinished);
}

function fillTable(table, heads, rows) {
  const head = element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text))));
  const body = rows.map((row) => element("tr", {}, ...row.map((text, index) => (index ? element("td", {}, text) : element("th", { scope: "row" }, text)))));
  table.replaceChildren(head, element("tbody", {}, ...body));
}

// ------------------------------------------------------------------------------------------------------ overview

function drawOverview() {
  const [area, end] = [columnOf("aufc"), columnOf("end")];
  const [across, up] = [data.columns[area], data.columns[end]];
  const words = (name, detail, x, y) => [name, ...detail, `${across.title}: ${x}`, `${up.title}: ${y}`];
  const rules = [];
  const series = [];
  for (const arm of shownArms()) {
    const [x, y] = [cell(arm, area), cell(arm, end)];
    if (!x && y && typeof y[0] === "number" && data.arms[arm].bound && runsOf(arm)[0].tasks.length === data.tasks.length) {
      rules.push({ y: y[0], text: `${data.arms[arm].title}: ${interval(y)}`, look: looks[arm].look });
    }
    if (!x || !y) continue;
    const runs = runsOf(arm);
    const points = runs.length > 1 ? runs.map((run) => ({
      x: run.values[area], y: run.values[end], faint: true, size: 3, run,
      text: words(data.arms[arm].title, [`one run: seed ${run.seed}, ${arrow(run.tasks)}`, ...unlearntWords([run])], format(run.values[area]), format(run.values[end])),
    })) : [];
    points.push({
      x: x[0], y: y[0], xs: x.slice(1, 3), ys: y.slice(1, 3), size: 5.5, label: marked(arm), run: runs[0],
      text: words(data.arms[arm].title, [...(runs.length > 1 ? ["mean"] : []), ...unlearntWords(runs)], interval(x), interval(y)),
    });
    series.push({ ...looks[arm], points });
  }
  const better = up.better === "lower" ? "lower left" : "upper left";
  $("overview-note").textContent = `The best place is the ${better}. ${series.some((one) => one.points.length > 1) ? "Large marks are means with 95 % t-intervals, small ones single runs. " : ""}Filled marks replay. Click a mark for its run.`;
  plot($("overview"), {
    title: `${across.title} and ${up.title}`, height: Math.min(460, Math.max(320, window.innerHeight * 0.55)),
    x: { title: `${across.title}${across.unit && `, ${across.unit}`} → forgets more` },
    y: { title: `${up.title}${up.unit && `, ${up.unit}`}: ${up.better} is better` }, rules, series,
    pick: (point) => openPanel(point.run),
  });
}

// --------------------------------------------------------------------------------------------------------- table

function drawTable() {
  const columns = columnsShown();
  const isSorted = columns.some(([index]) => index === state.sort);
  const head = (label, index, column) => {
    const sorted = isSorted && index === state.sort;
    const order = sorted ? ((column.better === "lower") === state.better ? "ascending" : "descending") : "none";
    const press = () => {
      state.better = state.sort === index ? !state.better : true;
      state.sort = index;
      drawTable();
      document.querySelector(`#table [data-column="${index}"]`).focus();
    };
    const mark = sorted ? (order === "ascending" ? " ▲" : " ▼") : "";
    return element("th", { scope: "col", "aria-sort": order }, element("button", { type: "button", "data-column": index, title: `sort; ${column.better} is better`, onclick: press }, `${label}${mark}`));
  };
  const rows = shownArms().map((arm) => ({ arm, cells: columns.map(([index]) => cell(arm, index)) }));
  if (isSorted) {
    const at = columns.findIndex(([index]) => index === state.sort);
    const sign = (columns[at][1].better === "lower" ? 1 : -1) * (state.better ? 1 : -1);
    const value = (row) => (typeof row.cells[at]?.[0] === "number" ? sign * row.cells[at][0] : Infinity); // unknown ones last
    rows.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : a.arm - b.arm));
  }
  const title = (column) => (column.unit ? `${column.title} (${column.unit})` : column.title);
  const heads = [element("th", { scope: "col" }, "arm"), element("th", { scope: "col" }, "n"), ...columns.map(([index, column]) => head(title(column), index, column))];
  const bodies = [rows.filter((row) => !data.arms[row.arm].bound), rows.filter((row) => data.arms[row.arm].bound)].filter((part) => part.length);
  $("table").replaceChildren(element("thead", {}, element("tr", {}, ...heads)), ...bodies.map((part) => element("tbody", {}, ...part.map(tableRow))));
  const over = state.order === ALL ? "seeds that have every order, each the mean of its orders" : "seeds";
  const bounds = rows.some((row) => data.arms[row.arm].bound) ? " Bounds stand below the line and have no order." : "";
  const unlearnt = rows.some((row) => unlearntOf(runsOf(row.arm)).length) ? " † trained a task and did not learn it, which is not the same as not forgetting it." : "";
  $("table-note").textContent = `Means over ${over}, with 95 % t-intervals where n is at least 2. Press a heading to sort, an arm to see its runs.${bounds}${unlearnt} ${data.metrics[state.metric].note}`;
}

function tableRow({ arm, cells }) {
  const open = () => openPanel(runsOf(arm)[0]);
  const name = element("button", { type: "button", class: "arm" }, glyph(looks[arm]), element("span", {}, marked(arm)));
  const n = Math.max(...cells.map((found) => found?.[3] ?? 0));
  const shown = cells.map((found) => {
    if (!found) return element("td", { class: "none" }, "–");
    const [mean, low, high] = found;
    const value = element("span", { class: "mean" }, formatWithin(mean, low, high));
    if (typeof low !== "number") return element("td", {}, value);
    return element("td", {}, value, element("span", { class: "range" }, `${formatWithin(low, low, high)} to ${formatWithin(high, low, high)}`));
  });
  const lit = { onpointerenter: () => highlight(arm), onpointerleave: () => highlight(null) };
  return element("tr", { "data-key": arm, onclick: open, ...lit }, element("th", { scope: "row" }, name), element("td", {}, String(n || "–")), ...shown);
}

// -------------------------------------------------------------------------------------------------------- curves

// Charts side by side, each below its caption. All get their places first: a chart is drawn as wide as its place.
function plotAll(host, charts) {
  const places = charts.map(() => element("div", { class: "chart" }));
  host.replaceChildren(...charts.map((chart, index) => element("figure", {}, element("figcaption", {}, chart.caption), places[index])));
  charts.forEach((chart, index) => plot(places[index], chart));
}

function drawCurves() {
  const order = curveOrder();
  const arms = shownArms();
  const metric = data.metrics[state.metric];
  const stretches = stretchesOf(order);
  const domain = [0, lastStep(arms.length ? shownRuns() : data.runs)];
  const lines = (pick, unit) => arms.flatMap((arm) => {
    const curves = curvesOf(arm, order);
    if (!curves) return [];
    const words = (step, value) => [data.arms[arm].title, `step ${step}: ${format(value)}${unit}`];
    const run = runsOf(arm).find((one) => data.arms[arm].bound || String(one.order) === order);
    const points = linePoints(curves.grid, pick(curves), words).map((point) => ({ ...point, run }));
    return points.length ? [{ ...looks[arm], line: true, points }] : [];
  });
  const open = (point) => openPanel(point.run);
  const isMean = state.seed === ALL && arms.some((arm) => data.arms[arm].means[order]);
  const averaged = isMean ? " Lines are means over seeds" : "";
  const only = state.order === ALL && data.orders.length > 1 ? " Curves are of the listed order; choose another above." : "";
  $("curves-note").textContent = `Validation ${metric.title} of each task over optimizer steps${metric.log ? ", logarithmic" : ""}; its own training is shaded darker.${averaged && `${averaged}${metric.log ? ", of logarithms" : ""}.`}${only}`;
  $("legend").replaceChildren(...arms.map((arm) => element("button", {
    type: "button", "data-key": arm, onclick: () => openPanel(runsOf(arm)[0]), onpointerenter: () => highlight(arm), onpointerleave: () => highlight(null),
  }, glyph(looks[arm]), ` ${data.arms[arm].title}`)));
  const x = { title: "optimizer step", domain };
  plotAll($("curves"), data.tasks.map((task, index) => ({
    caption: task, title: `${metric.title} of ${task}`, x, y: { log: metric.log }, bands: bandsOf(stretches, index),
    series: lines((curves) => curves.scores[index], ""), pick: open,
  })));
  const unit = metric.log ? " nats" : "";
  $("forgetting-note").textContent = `How much worse past tasks are than when their own training ended${metric.log ? `, in nats of log-${metric.title}` : `, in ${metric.title}`}; below zero they have become better.${averaged && `${averaged}.`}${only}`;
  const gaps = [["mean of past tasks", (curves) => curves.gap], ...stretches.map(([task]) => [data.tasks[task], (curves) => curves.gaps[task]])];
  const charts = gaps.map(([caption, pick]) => ({
    caption, title: `forgetting: ${caption}`, x, y: { zero: true }, bands: bandsOf(stretches), series: lines(pick, unit), pick: open,
  }));
  plotAll($("forgetting"), charts.filter((chart) => chart.series.length));
  if (!$("forgetting").children.length) $("forgetting").append(element("p", {}, "No task was past in what is shown."));
}

// -------------------------------------------------------------------------------------------------------- orders

function drawOrders() {
  const inOrders = (arm) => data.orders.filter((_, order) => cell(arm, columnOf("end"), String(order))).length;
  const arms = [...state.arms].filter((arm) => !data.arms[arm].bound && inOrders(arm) > 1);
  if (!arms.length) {
    $("orders").replaceChildren();
    $("orders-note").textContent = data.orders.length > 1 ? "None of the chosen arms was trained in more than one order." : "All runs met the tasks in one order.";
    return;
  }
  $("orders-note").textContent = "Arms that were trained in more than one order, each order by itself: means over seeds, with 95 % t-intervals where there are two or more.";
  plotAll($("orders"), ["end", "aufc"].map((name) => {
    const index = columnOf(name);
    const column = data.columns[index];
    const aside = (arm) => (arms.indexOf(arm) - (arms.length - 1) / 2) * Math.min(0.12, 0.35 / arms.length); // rows side by side
    const points = (arm) => data.orders.flatMap((order, row) => {
      const found = cell(arm, index, String(row));
      const run = data.runs.find((one) => one.arm === arm && one.order === row && (state.seed === ALL || String(one.seed) === state.seed));
      const text = () => [data.arms[arm].title, arrow(order), `${column.title}: ${interval(found)}`];
      return found ? [{ x: found[0], y: row + aside(arm), xs: found.slice(1, 3), size: 5, run, text: text() }] : [];
    });
    return {
      caption: column.title, title: `${column.title} by order`, x: { title: `${column.unit || data.metrics[state.metric].title}, ${column.better} is better` },
      y: { rows: data.orders.map(arrow) }, series: arms.map((arm) => ({ ...looks[arm], points: points(arm) })), pick: (point) => openPanel(point.run),
    };
  }));
}

// ---------------------------------------------------------------------------------------------------------- draw

function draw() {
  fillArms.show();
  const runs = shownRuns();
  const words = ["metric", "order", "seed"].map((id) => $(id).selectedOptions[0]?.textContent).filter(Boolean);
  $("shown").textContent = `${runs.length} of ${data.runs.length} finished runs are shown: ${words.join(", ")}.`;
  document.body.classList.toggle("crowded", shownArms().length > 8);
  drawOverview();
  drawTable();
  drawCurves();
  drawOrders();
}

function start() {
  fillHeader();
  fillFilters();
  draw();
  let width = window.innerWidth;
  let waiting = 0;
  window.addEventListener("resize", () => {
    if (width === window.innerWidth) return; // a phone's address bar comes and goes
    width = window.innerWidth;
    window.clearTimeout(waiting);
    waiting = window.setTimeout(draw, 150);
  });
}
