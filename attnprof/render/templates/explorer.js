"use strict";
// The page's state is its address: every choice is written there, and read from there.
const FIRST = 16, LAST = 2 ** 24, POINTS = 161;
const LENGTHS = [...new Set(Array.from({length: POINTS}, (_, i) =>
  Math.round(FIRST * (LAST / FIRST) ** (i / (POINTS - 1)))))];
const SIZES = ["N", "d", "h", "B"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
const $ = id => document.getElementById(id);
const boxes = [...document.querySelectorAll("#subjects input")];
const subjects = Object.fromEntries(PAGE.subjects.map(one => [one.name, one]));
let plot = null, state = null, timer = 0, frame = 0, announced = false;

// -- numbers ---------------------------------------------------------------------------
const ITEMS = {float64: 8, float32: 4, bfloat16: 2, float16: 2};

function formOf(subject, quantity, at) {
  const forms = subject.forms[quantity] || {};
  const item = ITEMS[at.dtype];
  const index = forms[`${at.phase} ${at.causal ? 1 : 0} ${item}`] ?? forms[`${at.phase} ${item}`] ?? forms[at.phase];
  return index == null ? null : FORMS[index];
}

// The value of a quantity of a subject at sizes; null where there is no formula.
function valueOf(subject, quantity, at) {
  if (quantity === "time_s") return boundOf(subject, at).time;
  const form = formOf(subject, quantity, at);
  if (!form) return null;
  const value = form(at.B, at.N, at.h, at.d);
  return Number.isFinite(value) ? value : null;
}

// The roofline's bound: the longer of FLOPs at the peak and bytes at the bandwidth.
function boundOf(subject, at) {
  const device = PAGE.devices[at.on];
  const flops = valueOf(subject, "flops", at), bytes = valueOf(subject, "bytes_moved", at);
  const rate = device.flops_per_s[subject.dtype || at.dtype];
  if (flops === null || bytes === null || !rate) return {time: null, by: ""};
  const compute = flops / rate, memory = bytes / device.bytes_per_s;
  return {time: Math.max(compute, memory), by: compute >= memory ? "compute" : "memory"};
}

const four = value => Number(value.toPrecision(4)).toLocaleString("en", {maximumSignificantDigits: 4});

function scaled(value, step, units) {
  let at = 0;
  while (at + 1 < units.length && Number(value.toPrecision(4)) >= step) { value /= step; at += 1; }
  return `${four(value)} ${units[at]}`.trim();
}

function shown(value, quantity) {
  if (value === null) return "–";
  if (quantity === "time_s") {
    const units = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]].find(([size]) => value >= size);
    return units ? `${four(value / units[0])} ${units[1]}` : `${four(value * 1e9)} ns`;
  }
  if (quantity === "flops") return scaled(value, 1000, ["", "k", "M", "G", "T", "P", "E", "Z", "Y"]);
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB"]);
}

// -- state -----------------------------------------------------------------------------
function read() {
  const typed = new URLSearchParams(location.hash.slice(1)), at = {...PAGE.start};
  for (const [name, value] of typed) {
    const field = $(name);
    if (name === "a") at.a = value.split(",").filter(one => subjects[one]);
    else if (name === "causal") at.causal = value === "1";
    else if (SIZES.includes(name)) at[name] = whole(value, Number(field.max)) ?? at[name];
    else if (field?.tagName === "SELECT" && [...field.options].some(one => one.value === value)) at[name] = value;
  }
  return at;
}

function whole(text, most) {
  const value = Number(text);
  return Number.isInteger(value) && value >= 1 && value <= most ? value : null;
}

function written(at) {
  const texts = Object.entries(at).map(([name, value]) =>
    `${name}=${name === "a" ? value.map(encodeURIComponent).join(",") : encodeURIComponent(name === "causal" ? Number(value) : value)}`);
  return `#${texts.join("&")}`;
}

function show(at, from) {
  state = at;
  for (const box of boxes) box.checked = at.a.includes(box.value);
  for (const name of SIZES) {
    if (from !== $(name)) $(name).value = at[name];
    const range = document.querySelector(`[data-of="${name}"]`);
    if (from !== range) range.value = Math.log2(at[name]);
    range.setAttribute("aria-valuetext", at[name].toLocaleString("en"));
  }
  for (const name of PAGE.choices) $(name).value = at[name];
  $("causal").checked = at.causal;
  const device = PAGE.devices[at.on];
  $("source").textContent = device.source;
  cancelAnimationFrame(frame);  // a picture a frame, however fast one drags
  frame = requestAnimationFrame(draw);
}

function chosen(from) {
  const at = {...state};
  at.a = boxes.filter(box => box.checked).map(box => box.value);
  at.a.sort((x, y) => place(state.a, x) - place(state.a, y));  // colours stay with their owners
  for (const name of SIZES) {
    const range = document.querySelector(`[data-of="${name}"]`);
    if (from === range) at[name] = Math.min(Math.max(Math.round(2 ** range.value), 1), Number($(name).max));
    else at[name] = whole($(name).value, Number($(name).max)) ?? state[name];
  }
  for (const name of PAGE.choices) at[name] = $(name).value;
  at.causal = $("causal").checked;
  history.replaceState(null, "", written(at));
  show(at, from);
}

const place = (list, name) => (list.includes(name) ? list.indexOf(name) : list.length);

// -- crossovers --------------------------------------------------------------------------
// Lengths at which the order of two curves changes: between grid points, then to the token.
function crossings(first, second, quantity, at) {
  const sign = N => {
    const values = [first, second].map(one => valueOf(one, quantity, {...at, N}));
    return values.includes(null) ? NaN : Math.sign(values[0] - values[1]);
  };
  const points = [];
  let before = sign(LENGTHS[0]), low = LENGTHS[0];
  for (const high of LENGTHS.slice(1)) {
    const now = sign(high);
    if (now && before && now !== before) {
      let [a, b] = [low, high];
      while (b - a > 1) {
        const middle = Math.floor((a + b) / 2);
        if (sign(middle) === before) a = middle; else b = middle;
      }
      points.push({N: b, above: now < 0 ? first : second, below: now < 0 ? second : first});
    }
    if (now || Number.isNaN(now)) [before, low] = [now, high];
  }
  return points;
}

function allCrossings(chosen, quantity, at) {
  const points = [];
  chosen.forEach((one, i) => chosen.slice(i + 1).forEach(other => points.push(...crossings(one, other, quantity, at))));
  return points.sort((a, b) => a.N - b.N);
}

function describe(points, chosen, quantity) {
  const what = {flops: "fewer FLOPs", bytes_moved: "less memory traffic", peak_bytes: "less memory", state_bytes: "less cache", time_s: "less time"}[quantity];
  const lines = points.slice(0, 8).map(one =>
    `From ${one.N.toLocaleString("en")} tokens on ${one.above.name} takes ${what} than ${one.below.name}.`);
  if (points.length > 8) lines.push(`${points.length - 8} more crossovers are marked on the curves.`);
  if (!lines.length) lines.push(chosen.length > 1 ? `No curves cross between ${FIRST} and ${LAST.toLocaleString("en")} tokens.` : "Choose two or more to see where they cross.");
  const list = document.createElement("ul");
  list.append(...lines.map(text => Object.assign(document.createElement("li"), {textContent: text})));
  clearTimeout(timer);  // a screen reader is told once, when dragging has ended
  timer = setTimeout(() => { if ($("crossovers").textContent !== list.textContent) $("crossovers").replaceChildren(list); }, announced ? 250 : 0);
  announced = true;
}

// -- drawing ------------------------------------------------------------------------------
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const title = quantity => PAGE.quantities.find(([value]) => value === quantity)[1];

function draw() {
  const at = state, quantity = at.q, chosen = at.a.map(name => subjects[name]);
  const points = allCrossings(chosen, quantity, at);
  $("curves").textContent = `${title(quantity)[0].toUpperCase()}${title(quantity).slice(1)} over tokens`;
  boxes.forEach(box => {
    const i = at.a.indexOf(box.value);
    box.parentElement.querySelector(".key").style.background = i < 0 ? "" : `var(--c${i % 8})`;
  });
  curves(chosen, quantity, at, points);
  describe(points, chosen, quantity);
  table(chosen, at);
  $("command").textContent = commands(chosen, at).join("\n");
  if (!performance.getEntriesByName("drawn").length) performance.mark("drawn");
}

function curves(chosen, quantity, at, points) {
  const values = chosen.map(one => LENGTHS.map(N => valueOf(one, quantity, {...at, N}) || null));
  plot?.destroy();
  plot = null;
  if (!values.some(some => some.some(value => value !== null))) {
    $("plot").textContent = chosen.length ? "No formula of these at this choice: the reasons stand below the table." : "Nothing is chosen.";
    return;
  }
  $("plot").textContent = "";
  const ink = colour("--ink"), line = colour("--line"), box = $("plot");
  const axis = {stroke: ink, grid: {stroke: line, width: 1}, ticks: {stroke: line}, font: "12px system-ui, sans-serif"};
  const width = box.clientWidth, height = Math.round(Math.min(Math.max(width * 0.5, 300), 460));
  const marks = u => {
    const {ctx} = u, ratio = devicePixelRatio, {left, top, width, height} = u.bbox;
    ctx.save();
    ctx.strokeStyle = colour("--mark"); ctx.fillStyle = colour("--mark"); ctx.lineWidth = ratio;
    const x = u.valToPos(Math.min(Math.max(at.N, FIRST), LAST), "x", true);
    ctx.setLineDash([4 * ratio, 4 * ratio]); ctx.beginPath(); ctx.moveTo(x, top); ctx.lineTo(x, top + height); ctx.stroke();
    for (const one of points) {
      const y = valueOf(one.above, quantity, {...at, N: one.N});
      ctx.beginPath();
      ctx.arc(Math.min(u.valToPos(one.N, "x", true), left + width), u.valToPos(y, "y", true), 4 * ratio, 0, 2 * Math.PI);
      ctx.fill();
    }
    ctx.restore();
  };
  const base = quantity === "flops" || quantity === "time_s" ? 10 : 2;
  const whole = (_, ticks) => ticks.map(value => Math.abs(Math.log10(value) % 1) < 1e-9 || base === 2 ? value : null);
  const short = (_, ticks) => ticks.map(value => value === null ? null : shown(value, quantity));
  plot = new uPlot({
    width, height,
    scales: {x: {time: false, distr: 3, log: 2}, y: {distr: 3, log: base}},
    axes: [
      {...axis, label: "tokens N", labelFont: axis.font, space: 60, values: (_, ticks) => ticks.map(N => N && tokens(N))},
      {...axis, size: 78, values: short, grid: {...axis.grid, filter: whole}, ticks: {...axis.ticks, filter: whole}},
    ],
    series: [
      {label: "N", value: (_, N) => N === null ? "–" : N.toLocaleString("en")},
      ...chosen.map((one, i) => ({
        label: one.name, stroke: colour(`--c${i % 8}`), width: 2, dash: DASHES[Math.floor(i / 2) % 4],
        pxAlign: 0, points: {show: false}, value: (_, value) => shown(value ?? null, quantity),
      })),
    ],
    hooks: {draw: [marks]},
    cursor: {drag: {x: false, y: false}},
  }, [LENGTHS, ...values], box);
}

const tokens = N => N >= 2 ** 20 ? `${N / 2 ** 20}M` : N >= 1024 ? `${N / 1024}k` : String(N);

function table(chosen, at) {
  const quantities = PAGE.quantities.map(([value]) => value), reasons = [];
  const values = chosen.map(one => Object.fromEntries(quantities.map(q => [q, valueOf(one, q, at)])));
  const least = Object.fromEntries(quantities.map(q => {
    const some = values.map(one => one[q]).filter(value => value !== null);
    return [q, new Set(some).size > 1 ? Math.min(...some) : null];
  }));
  const rows = chosen.map((one, i) => {
    const row = document.createElement("tr"), head = document.createElement("th");
    head.scope = "row"; head.textContent = one.name;
    const cells = quantities.map(q => {
      const cell = document.createElement("td");
      cell.className = values[i][q] !== null && values[i][q] === least[q] ? "number least" : "number";
      cell.textContent = shown(values[i][q], q);
      return cell;
    });
    const by = document.createElement("td");
    by.textContent = boundOf(one, at).by || "–";
    row.append(head, ...cells, by);
    const why = one.reasons[`${at.phase} ${at.causal ? 1 : 0}`] ?? one.reasons[at.phase];
    if (why) reasons.push(`${one.name}: ${why}`);
    reasons.push(...one.notes.map(note => `${one.name}: ${note}`));
    return row;
  });
  $("rows").replaceChildren(...rows);
  $("reasons").replaceChildren(...reasons.map(text => Object.assign(document.createElement("li"), {textContent: text})));
  $("workload").textContent = `${at.phase}${at.causal ? ", causal" : ""}, batch ${at.B}, ${at.N.toLocaleString("en")} tokens, ${at.h} heads of ${at.d}, ${at.dtype}, ${at.on}; * marks the least`;
}

function commands(chosen, at) {
  const ours = chosen.filter(one => one.kind === "mechanism").map(one => one.name), lines = [];
  if (ours.length) {
    const parts = [`attnprof compare -a ${ours.join(",")} --seq ${at.N} --heads ${at.h} --d ${at.d} --batch ${at.B}`,
      `--phase ${at.phase} --dtype ${at.dtype}${at.causal ? " --causal" : ""}`, PAGE.settings, "--exact"];
    lines.push(parts.filter(Boolean).join(" "));
  }
  for (const one of chosen) {
    if (one.kind === "model") lines.push(`${one.command} --seq ${at.N} --batch ${at.B} --phase ${at.phase} --exact`);
    if (one.kind === "code") lines.push(`${one.command} --phase ${at.phase} --at ${one.symbols.map(name => `${name}=${at[name]}`).join(",")}`);
  }
  return lines;
}

// -- events -------------------------------------------------------------------------------
$("choices").addEventListener("input", event => chosen(event.target));
$("choices").addEventListener("change", () => show(state));
$("choices").addEventListener("submit", event => event.preventDefault());
addEventListener("hashchange", () => show(read()));
let seen = 0;
addEventListener("resize", () => { if ($("plot").clientWidth !== seen) { seen = $("plot").clientWidth; draw(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
$("copy").addEventListener("click", async () => {
  const code = $("command");
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  $("copied").textContent = "Copied.";
  setTimeout(() => { $("copied").textContent = ""; }, 2000);
});
show(read());
