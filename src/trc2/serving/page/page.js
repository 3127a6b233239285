// The page at /: it shows what the server says, and everything that it shows is text, never markup.
"use strict";

const REFRESH_MS = 2000; // while something happens
const IDLE_MS = 10000;
const SILENT_MS = 40000; // the server writes at least every 15 s to those who follow a job
const MAX_PAUSE_MS = 15000;
const SHOWN = 10; // versions, unless all are asked for
const MAX_SERIES = 6;
const KEY = "trc2-token";

const byId = (id) => document.getElementById(id);
const state = { latest: null, versions: [], jobs: [], showAll: false, drawn: {}, following: null };

// ------------------------------------------------------------------------------------------------------ building

/** An element with properties and children; strings become text. */
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function vector(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Build a part of the page again if its data changed. The focus stays where it was. */
function draw(place, data, build) {
  const text = JSON.stringify(data);
  if (state.drawn[place.id] === text) return;
  state.drawn[place.id] = text;
  const focused = place.contains(document.activeElement) ? document.activeElement.id : "";
  place.replaceChildren(...build());
  if (focused) byId(focused)?.focus();
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// -------------------------------------------------------------------------------------------------------- numbers

const number = (value) => (value === null || value === undefined ? NaN : Number(value));

function short(value) {
  const given = number(value);
  return Number.isFinite(given) ? String(Number(given.toPrecision(4))) : value === null || value === undefined ? "–" : String(value);
}

function percent(value) {
  const given = number(value);
  if (!Number.isFinite(given)) return String(value);
  return `${given < 0 ? "−" : "+"}${Math.abs(100 * given).toFixed(1)} %`;
}

const time = (seconds) => new Date(1000 * seconds).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });

function clock(seconds) {
  const left = Math.max(0, Math.round(seconds)), minutes = Math.floor(left / 60);
  const two = (value) => String(value).padStart(2, "0");
  return minutes >= 60 ? `${Math.floor(minutes / 60)}:${two(minutes % 60)} h` : `${minutes}:${two(left % 60)} min`;
}

function size(bytes) {
  return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

// ---------------------------------------------------------------------------------------------------------- asking

class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    Object.assign(this, { status, code });
  }
}

/** A response of the server. An error has the server's own sentence. */
async function request(path, { method = "GET", body, signal } = {}) {
  const headers = {}, token = sessionStorage.getItem(KEY);
  if (token) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const content = body === undefined ? undefined : JSON.stringify(body);
  const response = await fetch(path, { method, headers, body: content, signal, cache: "no-store" });
  if (response.ok) return response;
  const error = (await response.json().catch(() => ({}))).error ?? {};
  throw new Refused(response.status, error.code, error.message ?? `The server answered with status ${response.status}.`);
}

const ask = async (path, options) => (await request(path, options)).json();

/** The data of server-sent events as they arrive, up to [DONE]. */
async function* events(response, alive = () => {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The connection ended.");
    alive();
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue;
      if (part === "data: [DONE]") return;
      const content = JSON.parse(part.slice(6));
      if (content.error) throw new Refused(200, content.error.code, content.error.message);
      yield content;
    }
  }
}

// ----------------------------------------------------------------------------------------------------------- token

function askForToken(sentence) {
  const dialog = byId("token-dialog");
  if (dialog.open) return;
  say(byId("token-error"), sentence);
  byId("token").value = "";
  dialog.showModal();
  byId("token").focus();
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId("token").value.trim());
  byId("token-dialog").close();
  refresh();
});
byId("token-dialog").addEventListener("cancel", (event) => event.preventDefault()); // there is nothing to see without it
byId("forget-token").addEventListener("click", () => {
  sessionStorage.removeItem(KEY);
  location.reload();
});

// --------------------------------------------------------------------------------------------------------- refresh

let refreshing = null;

function refresh() {
  refreshing ??= load().finally(() => { refreshing = null; });
  return refreshing;
}

/** Ask for everything and show it. Returns whether the server answered. */
async function load() {
  const note = byId("connection");
  try {
    const [health, versions] = await Promise.all([ask("health"), ask("v1/versions")]);
    say(note, "Connected");
    byId("forget-token").hidden = !sessionStorage.getItem(KEY);
    byId("problem").hidden = !health.problem;
    say(byId("problem"), health.problem ?? "");
    state.latest = versions.latest;
    state.versions = versions.data;
    showVersions();
    await loadJobs();
    document.body.dataset.ready = "yes";
    return true;
  } catch (error) {
    if (error.status === 401) {
      const had = sessionStorage.getItem(KEY);
      sessionStorage.removeItem(KEY);
      askForToken(had ? "The server does not know this token." : "");
    }
    say(note, error instanceof Refused ? error.message : "No connection to the server. Trying again.");
    return false;
  }
}

async function loadJobs() {
  try {
    state.jobs = (await ask("v1/fine_tuning/jobs?limit=20")).data;
    say(byId("jobs-note"), state.jobs.length ? "" : "No job yet. Teach documents by trc2 teach, or by any client of OpenAI's interface.");
  } catch (error) {
    if (!(error instanceof Refused) || ![403, 404].includes(error.status)) throw error;
    state.jobs = [];
    say(byId("jobs-note"), error.message);
  }
  byId("jobs-note").hidden = !byId("jobs-note").textContent;
  showJobs();
}

// -------------------------------------------------------------------------------------------------------- versions

function learned(version) {
  return version.tasks.map((task) => {
    const scores = version.scores[task];
    if (!scores) return make("li", {}, make("b", {}, task));
    return make("li", {}, make("b", {}, task), ` ${short(scores.before)} → ${short(scores.learned)}`);
  });
}

/** What the acceptance check found, task by task. */
function kept(verdict) {
  return Object.entries(verdict?.tasks ?? {}).map(([task, found]) => {
    const bounds = ` ${percent(found.rise)} (${percent(found.low)} … ${percent(found.high)}) `;
    const word = make("span", { className: found.passed ? "good" : "bad" }, found.verdict);
    return make("li", {}, make("b", {}, task), bounds, word);
  });
}

function facts(title, items, otherwise) {
  const content = items.length ? make("ul", {}, ...items) : make("p", { className: "note" }, otherwise);
  return make("div", {}, make("h3", {}, title), content);
}

function verdictTag(verdict) {
  if (!verdict || verdict.limit === null) return [];
  const limit = `limit ${percent(verdict.limit)}`;
  return [make("span", { className: `tag ${verdict.passed ? "good" : "bad"}` }, `${verdict.passed ? "passed" : "refused"}, ${limit}`)];
}

function versionItem(version) {
  const name = make("p", { className: "name" }, version.id);
  if (version.is_latest) name.append(make("span", { className: "tag" }, "served"));
  if (version.is_held) name.append(make("span", { className: "tag" }, "waits for a person"));
  if (version.is_damaged) name.append(make("span", { className: "tag bad" }, "damaged"));
  name.append(...verdictTag(version.verdict));
  const about = [time(version.created_at)];
  if (version.parent) about.push(`goes on from ${version.parent}`);
  if (version.bytes) about.push(size(version.bytes));
  if (version.reason) about.push(version.reason);
  const actions = make("div", { className: "actions" });
  if (!version.is_latest) {
    const promote = make("button", { type: "button", id: `promote-${version.id}` }, "Serve this version");
    promote.addEventListener("click", () => confirmMove(version.id, `v1/versions/${encodeURIComponent(version.id)}/promote`));
    const compare = make("button", { type: "button", id: `compare-${version.id}` }, "Compare with the served one");
    compare.addEventListener("click", () => {
      byId("left").value = "latest";
      byId("right").value = version.id;
      byId("prompt").focus();
    });
    actions.append(promote, compare);
  }
  const item = make("li", { className: "card" }, name, make("p", { className: "note" }, about.join(" · ")));
  if (version.tasks.length || version.verdict) {
    const nothing = version.verdict?.not_measured || "Not compared with an earlier version.";
    item.append(make("div", { className: "facts" }, facts("Learned", learned(version), "–"), facts("Old text", kept(version.verdict), nothing)));
  }
  item.append(actions);
  return item;
}

function showVersions() {
  const served = state.versions.find((version) => version.id === state.latest);
  say(byId("served-name"), state.latest);
  const taught = served?.tasks.length ? `learned ${served.tasks.join(", ")}` : "";
  say(byId("served-note"), [served ? `made ${time(served.created_at)}` : "", taught].filter(Boolean).join(" · "));
  const before = served?.replaced;
  byId("rollback").hidden = !before;
  say(byId("rollback"), `Go back to ${before ?? ""}`);
  const shown = state.showAll ? state.versions : state.versions.slice(0, SHOWN);
  draw(byId("versions"), shown, () => shown.map(versionItem));
  byId("more").hidden = shown.length === state.versions.length;
  const names = ["latest", ...state.versions.map((version) => version.id)];
  for (const [place, usual] of [["left", "latest"], ["right", before ?? names[1]]]) {
    const select = byId(place), chosen = select.value || usual;
    draw(select, [names, state.latest], () => names.map((name) => new Option(name === "latest" ? `latest (${state.latest})` : name, name)));
    select.value = names.includes(chosen) ? chosen : usual;
  }
}

byId("more").addEventListener("click", () => {
  state.showAll = true;
  showVersions();
});

// ------------------------------------------------------------------------------------------------------ confirming

let confirmed = null; // what happens if the reader agrees

function confirmAct({ title, text, yes, withReason, act }) {
  confirmed = act;
  say(byId("confirm-title"), title);
  say(byId("confirm-text"), text);
  say(byId("confirm-yes"), yes);
  say(byId("confirm-error"), "");
  byId("reason").value = "";
  byId("reason-row").hidden = !withReason;
  byId("confirm").showModal();
  byId("confirm-no").focus();
}

function confirmMove(name, path) {
  confirmAct({
    title: `Serve ${name}?`,
    text: `Requests for latest are then answered by ${name} instead of ${state.latest}. Nothing is removed, and you can come back.`,
    yes: `Serve ${name}`,
    withReason: true,
    act: (reason) => ask(path, { method: "POST", body: { reason } }),
  });
}

byId("rollback").addEventListener("click", () => {
  const served = state.versions.find((version) => version.id === state.latest);
  if (served?.replaced) confirmMove(served.replaced, `v1/versions/${encodeURIComponent(served.replaced)}/promote`);
});
byId("confirm-no").addEventListener("click", () => byId("confirm").close());
byId("confirm-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const buttons = [byId("confirm-yes"), byId("confirm-no")];
  for (const button of buttons) button.disabled = true;
  try {
    await confirmed(byId("reason").value);
    byId("confirm").close();
  } catch (error) {
    say(byId("confirm-error"), error instanceof Refused ? error.message : "No connection to the server. Try again.");
  } finally {
    for (const button of buttons) button.disabled = false;
    await refresh();
  }
});

// ------------------------------------------------------------------------------------------------------------ jobs

function jobItem(job, note) {
  const name = make("p", { className: "name" }, job.task);
  const kind = { succeeded: " good", failed: " bad" }[job.status] ?? "";
  name.append(make("span", { className: `tag${kind}` }, job.status === "failed" && job.error?.code === "forgetting" ? "refused" : job.status));
  const item = make("li", { className: "card" }, name, make("p", { className: "note" }, note));
  if (job.error) item.append(make("p", { className: "bad" }, job.error.message));
  const found = kept(job.verdict);
  if (found.length) item.append(make("div", { className: "facts" }, facts("Old text", found, "")));
  const actions = make("div", { className: "actions" });
  if (job.status === "paused") {
    const resume = make("button", { type: "button", id: `resume-${job.id}` }, "Resume");
    resume.addEventListener("click", () => act(`v1/fine_tuning/jobs/${encodeURIComponent(job.id)}/resume`));
    actions.append(resume);
  }
  if (["paused", "queued"].includes(job.status)) {
    const cancel = make("button", { type: "button", id: `cancel-${job.id}` }, "Cancel");
    cancel.addEventListener("click", () => confirmCancel(job));
    actions.append(cancel);
  }
  item.append(actions);
  return item;
}

async function act(path) {
  try {
    await ask(path, { method: "POST", body: {} });
  } catch (error) {
    byId("problem").hidden = false;
    say(byId("problem"), error.message);
  }
  await refresh();
}

function confirmCancel(job) {
  confirmAct({
    title: `Cancel the job ${job.task}?`,
    text: "What it has learned so far is lost. The served version stays as it is.",
    yes: "Cancel the job",
    withReason: false,
    act: () => ask(`v1/fine_tuning/jobs/${encodeURIComponent(job.id)}/cancel`, { method: "POST", body: {} }),
  });
}

function jobState(job) {
  const done = job.progress;
  if (!done) return "The job begins.";
  if (done.step >= done.steps) return `${done.steps} of ${done.steps} steps. The acceptance check compares the model with the served one.`;
  const left = job.estimated_finish === null ? "" : `, about ${clock(job.estimated_finish - Date.now() / 1000)} left`;
  return `Step ${done.step} of ${done.steps}${left}.`;
}

function showJobs() {
  const running = state.jobs.find((job) => job.status === "running");
  byId("job").hidden = !running;
  if (running) {
    say(byId("job-name"), running.task);
    say(byId("job-note"), `${running.id} teaches ${running.model}, since ${time(running.created_at)}`);
    say(byId("job-state"), jobState(running));
    const bar = byId("job-progress");
    if (running.progress) Object.assign(bar, { max: running.progress.steps, value: running.progress.step });
    else bar.removeAttribute("value");
  }
  if (running?.id !== state.following?.job) follow(running?.id);
  const waiting = state.jobs.filter((job) => ["queued", "paused"].includes(job.status)).reverse();
  const ended = state.jobs.filter((job) => ["succeeded", "failed", "cancelled"].includes(job.status));
  byId("queue-title").hidden = !waiting.length;
  byId("ended-title").hidden = !ended.length;
  draw(byId("queue"), waiting, () => waiting.map((job) => jobItem(job, `${job.id}, since ${time(job.created_at)}`)));
  draw(byId("ended"), ended, () => ended.map((job) => jobItem(job, [time(job.finished_at), job.fine_tuned_model ? `became ${job.fine_tuned_model}` : ""].filter(Boolean).join(" · "))));
}

byId("pause").addEventListener("click", () => state.following && act(`v1/fine_tuning/jobs/${encodeURIComponent(state.following.job)}/pause`));
byId("cancel").addEventListener("click", () => {
  const running = state.jobs.find((job) => job.status === "running");
  if (running) confirmCancel(running);
});

// ------------------------------------------------------------------------------------------------- following a job

/**
 * Follow the events of a job until another one runs. After a lost connection the server sends all events again, and
 * an event has the same id then, so the map holds each of them once.
 */
async function follow(job) {
  state.following?.stop.abort();
  state.following = job ? { job, stop: new AbortController(), events: new Map(), connections: 0 } : null;
  const mine = state.following;
  showEvents();
  for (let failures = 0; mine && state.following === mine; failures += 1) {
    const silent = new AbortController(); // this connection only
    const end = () => silent.abort();
    mine.stop.signal.addEventListener("abort", end);
    let timer = setTimeout(end, SILENT_MS);
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(end, SILENT_MS);
    };
    try {
      const path = `v1/fine_tuning/jobs/${encodeURIComponent(job)}/events?stream=true`;
      const response = await request(path, { signal: silent.signal });
      mine.connections += 1;
      for await (const event of events(response, alive)) {
        failures = 0;
        mine.events.set(event.id, event);
        showEventsSoon();
      }
      await refresh();
      return;
    } catch {
      if (state.following !== mine) return;
      await new Promise((resolve) => setTimeout(resolve, Math.min(MAX_PAUSE_MS, 500 * 2 ** failures)));
    } finally {
      clearTimeout(timer);
      mine.stop.signal.removeEventListener("abort", end);
    }
  }
}

let willShow = false;

function showEventsSoon() {
  if (willShow) return;
  willShow = true;
  setTimeout(() => {
    willShow = false;
    showEvents();
  }, 100);
}

function showEvents() {
  const all = [...(state.following?.events.values() ?? [])];
  const messages = all.filter((event) => event.type === "message");
  draw(byId("message-list"), messages, () => messages.map((event) => make("li", { className: event.level === "error" ? "bad" : "" }, `${time(event.created_at)}: ${event.message}`)));
  byId("messages").hidden = !messages.length;
  const series = seriesOf(all);
  byId("chart-note").hidden = !series.length;
  draw(byId("chart"), [series, byId("chart").clientWidth], () => (series.length ? chart(series) : []));
}

/** Perplexity of each task over the steps, from the evaluations. */
function seriesOf(all) {
  const tasks = new Map();
  for (const { data } of all) {
    if (data?.kind !== "eval") continue;
    for (const [name, value] of Object.entries(data)) {
      const [head, task, metric] = name.split("/");
      if (head !== "eval" || metric !== "perplexity" || !(number(value) > 0) || !Number.isFinite(number(value))) continue;
      if (!tasks.has(task)) tasks.set(task, new Map());
      tasks.get(task).set(data.step, number(value));
    }
  }
  const sorted = [...tasks].map(([task, points]) => ({ task, points: [...points].sort((a, b) => a[0] - b[0]) }));
  return sorted.slice(-MAX_SERIES); // new tasks come last
}

/** A name of at most so many signs. Names differ at their ends too, as in news and news-earlier. */
function middle(name, most) {
  if (name.length <= most) return name;
  const head = Math.ceil((most - 1) / 2);
  return `${name.slice(0, head)}…${name.slice(head + 1 - most)}`;
}

/**
 * The picture, with names at the ends of its lines, or a list of them below it if it is narrow. It ends at the last
 * evaluation: the bar above it says how much of the job is left.
 */
function chart(series) {
  const width = Math.max(240, byId("chart").clientWidth || 600), height = 220, isNarrow = width < 520;
  const labels = series.map((one) => `${middle(one.task, 24)} ${short(one.points.at(-1)[1])}`);
  const edge = { left: 46, right: isNarrow ? 8 : 16 + 7 * Math.max(...labels.map((label) => label.length)), top: 10, bottom: 28 };
  const points = series.flatMap((one) => one.points);
  const steps = points.map((point) => point[0]), values = points.map((point) => Math.log(point[1]));
  const most = Math.max(1, ...steps), isCrowded = points.length > 40 * series.length;
  let low = Math.min(...values), high = Math.max(...values);
  if (high - low < 0.1) [low, high] = [low - 0.05, high + 0.05];
  const x = (step) => edge.left + (step / most) * (width - edge.left - edge.right);
  const y = (value) => edge.top + ((high - Math.log(value)) / (high - low)) * (height - edge.top - edge.bottom);
  const latest = series.map((one) => `${one.task} ${short(one.points.at(-1)[1])}`).join(", ");
  const picture = vector("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `Perplexity at the last evaluation: ${latest}` });
  for (const place of [0, 0.5, 1]) {
    const value = Math.exp(low + place * (high - low));
    picture.append(vector("line", { class: "axis", x1: edge.left, x2: width - edge.right, y1: y(value), y2: y(value) }));
    picture.append(vector("text", { x: edge.left - 6, y: y(value) + 4, "text-anchor": "end" }, String(Number(value.toPrecision(3)))));
  }
  for (const step of [0, most]) picture.append(vector("text", { x: x(step), y: height - 8, "text-anchor": step ? "end" : "start" }, step ? `step ${step}` : "0"));
  const ends = series.map((one, place) => ({ place, y: y(one.points.at(-1)[1]) })).sort((a, b) => a.y - b.y);
  ends.forEach((end, place) => { if (place) end.y = Math.max(end.y, ends[place - 1].y + 14); }); // labels do not overlap
  series.forEach((one, place) => {
    const group = vector("g", { class: `series s${place % MAX_SERIES}` });
    group.append(vector("path", { d: one.points.map(([step, value], index) => `${index ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("") }));
    for (const [step, value] of one.points) {
      group.append(vector("circle", { cx: x(step), cy: y(value), r: isCrowded ? 1 : isNarrow ? 2 : 3 }, vector("title", {}, `${one.task}, step ${step}: ${short(value)}`)));
    }
    const end = ends.find((found) => found.place === place);
    if (!isNarrow) group.append(vector("text", { x: width - edge.right + 8, y: end.y + 4 }, labels[place]));
    picture.append(group);
  });
  if (!isNarrow) return [picture];
  const items = labels.map((label, place) => make("li", { className: `s${place % MAX_SERIES}` }, label));
  return [picture, make("ul", { className: "legend" }, ...items)];
}

new ResizeObserver(() => showEvents()).observe(byId("chart"));

// ------------------------------------------------------------------------------------------------------- comparing

let asking = null;

async function answerOf(side, settings, signal) {
  const name = byId(side).value, place = byId(`${side}-answer`), note = byId(`${side}-note`);
  say(byId(`${side}-name`), name === "latest" ? `latest (${state.latest})` : name);
  const written = make("span");
  place.replaceChildren(make("span", { className: "asked" }, settings.prompt), written);
  say(note, "Waiting …");
  try {
    const response = await request("v1/completions", { method: "POST", body: { ...settings, model: name, stream: true }, signal });
    for await (const part of events(response)) {
      for (const choice of part.choices) {
        written.append(choice.text);
        if (choice.finish_reason) say(note, `Answered by ${part.system_fingerprint}.`);
      }
    }
  } catch (error) {
    const sentence = error.name === "AbortError" ? "Stopped." : error instanceof Refused ? error.message : "The connection was lost. Ask again.";
    say(note, sentence);
  }
}

byId("compare").addEventListener("submit", async (event) => {
  event.preventDefault();
  asking?.abort();
  const mine = (asking = new AbortController());
  byId("answers").hidden = false;
  byId("stop").hidden = false;
  const settings = {
    prompt: byId("prompt").value,
    max_tokens: Number(byId("max-tokens").value),
    temperature: Number(byId("temperature").value),
    seed: Number(byId("seed").value),
  };
  await Promise.all(["left", "right"].map((side) => answerOf(side, settings, mine.signal)));
  if (asking === mine) byId("stop").hidden = true;
});
byId("stop").addEventListener("click", () => asking?.abort());
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("compare").requestSubmit();
});

// ------------------------------------------------------------------------------------------------------------ begin

async function keepFresh() {
  for (;;) {
    const isFresh = document.hidden || byId("token-dialog").open || (await refresh());
    const isBusy = state.jobs.some((job) => ["queued", "running"].includes(job.status));
    await new Promise((resolve) => setTimeout(resolve, isFresh && !isBusy ? IDLE_MS : REFRESH_MS));
  }
}

document.addEventListener("visibilitychange", () => { if (!document.hidden && !byId("token-dialog").open) refresh(); });
keepFresh();
