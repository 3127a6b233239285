// The page looks at itself: opened with #check, it uses its filters, sorts, clicks and presses keys, and writes down
// what was drawn. Tests read it; nobody else does.

const failures = [];
if (window.location.hash === "#check") {
  window.addEventListener("error", (event) => failures.push(String(event.message)));
  window.addEventListener("unhandledrejection", (event) => failures.push(String(event.reason)));
  document.addEventListener("securitypolicyviolation", (event) => failures.push(`${event.violatedDirective} ${event.blockedURI}`));
  console.error = (...words) => failures.push(words.join(" "));
}

function look() {
  const marks = (id) => [...$(id).querySelectorAll("svg.plot")].map((svg) => svg.querySelectorAll("path.marker").length);
  const texts = (cells) => [...cells].map((one) => [...one.childNodes].map((part) => part.textContent).join(" | "));
  return {
    shown: $("shown").textContent,
    charts: { overview: marks("overview"), curves: marks("curves"), forgetting: marks("forgetting"), orders: marks("orders") },
    heads: [...$("table").querySelectorAll("thead th")].map((th) => th.textContent),
    table: [...$("table").querySelectorAll("tbody tr")].map((row) => texts(row.children)),
  };
}

function lookAtPanel() {
  const found = {
    open: $("panel").open,
    title: $("panel-title").textContent,
    run: $("panel-body").querySelector(".facts p")?.textContent,
    charts: $("panel-body").querySelectorAll("svg.plot").length,
    settings: [...$("panel-body").querySelectorAll("table.settings")].map((table) => [...table.querySelectorAll("tbody tr")].map((row) => [...row.children].map((one) => one.textContent))),
  };
  $("panel").close();
  return found;
}

function checkOverview(found, press) {
  const svg = $("overview").querySelector("svg");
  svg.scrollIntoView();
  const box = svg.querySelector("path.marker").getBoundingClientRect();
  const at = { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2, bubbles: true };
  svg.dispatchEvent(new PointerEvent("pointermove", at));
  found.tip = $("tip").hidden ? null : $("tip").innerText;
  found.lit = document.querySelectorAll("tr.on").length;
  svg.dispatchEvent(new MouseEvent("click", at));
  found.point = lookAtPanel();

  const stop = svg.querySelector('[tabindex="0"]');
  stop.focus();
  press(stop, "ArrowRight");
  found.focus = document.activeElement.getAttribute("aria-label");
  found.stops = svg.querySelectorAll('[tabindex="0"]').length;
  press(document.activeElement, "Enter");
  found.key = lookAtPanel();
}

function checkPage() {
  const set = (id, value) => {
    $(id).value = value;
    $(id).dispatchEvent(new Event("change"));
    return look();
  };
  const press = (target, key) => target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const found = { facts: $("facts").textContent, first: look() };
  found.wide = document.documentElement.scrollWidth - window.innerWidth;
  found.unfinished = [...$("unfinished-runs").querySelectorAll("tbody tr")].map((row) => row.textContent);
  if (data.metrics.length > 1) found.metric = set("metric", "1");
  set("metric", "0");
  found.seed = set("seed", String(data.seeds[0]));
  set("seed", ALL);
  if (data.orders.length > 1) found.order = set("order", ALL);
  set("order", "0");
  $("arms").querySelector("fieldset label[data-key] input").click();
  found.without = look();
  const [all, none] = $("arms").querySelectorAll(".buttons button");
  none.click();
  found.none = look();
  all.click();
  $("table").querySelector('[data-column="0"]').click();
  found.sorted = look();
  $("table").querySelector('[data-column="0"]').click();
  found.reversed = look();
  $("table").querySelector("tbody tr td:last-child").click();
  found.row = lookAtPanel();

  if ($("overview").querySelector("path.marker")) checkOverview(found, press);
  return found;
}

start();
wirePanel();
if (window.location.hash === "#check") {
  let found = {};
  try {
    found = checkPage();
  } catch (error) {
    failures.push(String(error.stack));
  }
  document.body.append(element("pre", { id: "self-check" }, JSON.stringify({ ...found, failures })));
}
