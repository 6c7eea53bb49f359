// Draws the slices of the timeline on a canvas over its static drawing, to read, zoom and pan.  Without JavaScript
// the drawing stays as it is.  Times are in ns since its start.
(() => {
  "use strict";
  const MAX_ZOOM = 4096, WHEEL = 0.002, PAGE = 0.5, NEAR_PX = 3, MARGIN = 0.3, TICKS = 4;
  const { figure, data, find } = openChart("step");
  const stage = find(".stage"), times = find("svg.times"), readout = find(".readout"), drawing = find("svg.slices");
  const wholeTimes = [...times.childNodes], canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
  const height = Number(drawing.getAttribute("height"));
  let view = [0, data.length], width = 1, colours = [], ink = "", paper = "", ground = "", hatch = null;
  let chosen = null, dragged = null, nextArrow = 0;

  const WAIT = data.kinds.findIndex(([colour]) => colour === "step-wait");
  const lanes = [];
  for (const row of data.rows) {
    for (const lane of row.lanes) {
      const slices = [];
      for (let at = 0, end = 0, message = 0; at < lane.slices.length; at += 4) {
        const start = end + lane.slices[at + 1];
        end = start + lane.slices[at + 2];
        message += lane.slices[at + 3];
        slices.push({ kind: lane.slices[at], start, end, message });
      }
      lanes.push({ ...lane, row, slices });
    }
  }
  // The first slice of a lane that ends after `time`.
  const findIndex = (slices, time) => {
    let low = 0, high = slices.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (slices[middle].end <= time) low = middle + 1; else high = middle;
    }
    return low;
  };

  const toX = (time) => width * (time - view[0]) / (view[1] - view[0]);
  const formatTime = (time, span = time) => {
    const [unit, name] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([unit]) => Math.abs(span) >= unit) ?? [1, "ns"];
    return (time / unit).toFixed(unit === 1 ? 0 : clamp(3 - Math.floor(Math.log10(Math.abs(span) / unit)), 1, 6)) + " " + name;
  };
  const formatMoment = (time) => (time / 1e6).toFixed(clamp(8 - Math.floor(Math.log10(view[1] - view[0])), 1, 6)) + " ms";
  const formatBytes = (bytes) => {
    const power = clamp(Math.floor(Math.log2(Math.max(1, bytes)) / 10), 0, 4);
    return (bytes / 1024 ** power).toFixed(power ? 1 : 0) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][power];
  };
  const describe = (lane, slice) => {
    const phase = lane.row.phases.findLast(([start]) => start <= slice.start), { row } = lane;
    const span = formatTime(slice.end - slice.start) + " from " + formatMoment(slice.start);
    const parts = [row.name + ": " + (slice.kind < 0 ? "no compute" : data.kinds[slice.kind][1]) + ", " + span];
    if (phase && slice.message < 0) parts.push(data.words[phase[1]]);
    if (slice.message >= 0) {
      const [kind, bytes, start, length, last] = row.messages.slice(5 * slice.message, 5 * slice.message + 5);
      parts.push("part of " + data.words[kind] + ", " + lane.name + ", " + formatTime(length) + " from " + formatMoment(start));
      if (bytes >= 0) parts.push(formatBytes(bytes));
      parts.push(last < 0 ? "no rank arrived clearly last" : "rank " + last + " arrived last");
    } else if (slice.kind >= 0) parts.push(lane.name);
    return parts.join("; ");
  };

  const readColours = () => {
    const style = (selector) => getComputedStyle(find(selector));
    colours = data.kinds.map(([colour]) => style(".swatch." + colour).borderTopColor);
    [ink, paper, ground] = [style(".step-head").fill, style(".step-paper").fill, style(".step-lane").fill];
    const ratio = devicePixelRatio || 1, size = Math.round(6 * ratio), tile = document.createElement("canvas");
    tile.width = tile.height = size;
    const brush = tile.getContext("2d");
    brush.fillStyle = paper;
    brush.fillRect(0, 0, size, size);
    brush.strokeStyle = colours[WAIT];
    brush.lineWidth = size / 3;
    for (const shift of [-size, 0, size]) {
      brush.beginPath();
      brush.moveTo(shift - 1, size + 1);
      brush.lineTo(shift + size + 1, -1);
      brush.stroke();
    }
    hatch = pen.createPattern(tile, "repeat");
    hatch.setTransform(new DOMMatrix().scale(1 / ratio));
  };
  const drawArrow = (x0, y0, x1, y1) => {
    const angle = Math.atan2(y1 - y0, x1 - x0);
    for (const [style, line] of [[paper, 4], [ink, 1.5]]) {
      pen.strokeStyle = style;
      pen.lineWidth = line;
      pen.beginPath();
      pen.moveTo(x0, y0);
      pen.lineTo(x1, y1);
      pen.stroke();
    }
    pen.fillStyle = ink;
    pen.beginPath();
    pen.moveTo(x1, y1);
    for (const turn of [0.45, -0.45]) pen.lineTo(x1 - 9 * Math.cos(angle + turn), y1 - 9 * Math.sin(angle + turn));
    pen.fill();
  };
  const draw = () => {
    const ratio = devicePixelRatio || 1;
    width = stage.clientWidth || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    for (const { top, height, slices } of lanes) {
      pen.fillStyle = ground;
      pen.fillRect(0, top, width, height);
      for (let index = findIndex(slices, view[0]); index < slices.length && slices[index].start < view[1]; index++) {
        const { kind, start, end } = slices[index];
        const left = Math.max(0, toX(start)), right = Math.min(width, toX(end));
        pen.fillStyle = kind === WAIT && right - left > 3 ? hatch : colours[kind];
        pen.fillRect(left, top, Math.max(0.5, right - left), height);
      }
    }
    for (const [start, arrival, top, bottom] of data.arrows) {
      const middle = toX((Math.max(start, view[0]) + Math.min(arrival, view[1])) / 2);
      if (arrival > view[0] && start < view[1]) drawArrow(middle, top, toX(arrival), bottom);
    }
    if (chosen) {
      const left = clamp(toX(chosen.slice.start), -4, width), right = clamp(toX(chosen.slice.end), 0, width + 4);
      pen.strokeStyle = ink;
      pen.lineWidth = 2;
      pen.strokeRect(left - 1, chosen.lane.top - 1, Math.max(2, right - left + 2), chosen.lane.height + 2);
    }
  };
  const drawTimes = () => {
    if (view[1] - view[0] >= data.length) return times.replaceChildren(...wholeTimes);
    const marks = [...Array(TICKS + 1).keys()].map((tick) => {
      const anchor = tick === 0 ? "start" : tick === TICKS ? "end" : "middle";
      const text = tick % 2 && width < 500 ? "" : formatMoment(view[0] + (view[1] - view[0]) * tick / TICKS);
      return makeSvg("text", { x: 100 * tick / TICKS + "%", y: 14, "text-anchor": anchor }, text);
    });
    return times.replaceChildren(...marks);
  };

  let isPlanned = false;
  const redraw = () => {
    if (isPlanned) return;
    isPlanned = true;
    requestAnimationFrame(() => {
      isPlanned = false;
      draw();
      drawTimes();
    });
  };
  const show = (start, end) => {
    const span = clamp(end - start, data.length / MAX_ZOOM, data.length), from = clamp(start, 0, data.length - span);
    view = [from, from + span];
    find(".reset").disabled = find(".wider").disabled = span >= data.length;
    redraw();
  };
  const showAll = () => show(0, data.length);
  const zoomBy = (factor, at) => show(at - (at - view[0]) / factor, at + (view[1] - at) / factor);
  const panBy = (part) => show(view[0] + part * (view[1] - view[0]), view[1] + part * (view[1] - view[0]));
  const centre = () => {
    const middle = chosen ? (chosen.slice.start + chosen.slice.end) / 2 : -1;
    return middle > view[0] && middle < view[1] ? middle : (view[0] + view[1]) / 2;
  };
  const choose = (lane, slice) => {
    chosen = slice && { lane, slice };
    if (slice) readout.textContent = describe(lane, slice);
    redraw();
  };
  // Chooses a slice and moves the view to it.
  const goTo = (lane, slice) => {
    const span = view[1] - view[0], from = slice.start - MARGIN * span;
    if (slice.start < view[0] || slice.end > view[1]) show(from, from + span);
    choose(lane, slice);
  };
  const step = (by) => {
    const lane = chosen ? chosen.lane : lanes[0];
    const at = chosen ? lane.slices.indexOf(chosen.slice) : -1;
    const start = chosen && at < 0 ? findIndex(lane.slices, chosen.slice.start) - (by > 0 ? 1 : 0) : at;
    const slice = lane.slices[clamp(start + by, 0, lane.slices.length - 1)];
    if (slice) goTo(lane, slice);
  };
  const changeLane = (by) => {
    const filled = lanes.filter((lane) => lane.slices.length), time = centre();
    const at = chosen ? filled.indexOf(chosen.lane) : -1, lane = filled[clamp(at + by, 0, filled.length - 1)];
    if (lane) goTo(lane, lane.slices[clamp(findIndex(lane.slices, time), 0, lane.slices.length - 1)]);
  };
  const showEnd = (isLast) => {
    const { slices } = chosen ? chosen.lane : lanes[0];
    if (slices.length) goTo(chosen ? chosen.lane : lanes[0], slices[isLast ? slices.length - 1 : 0]);
  };
  const showNextWait = () => {
    if (!data.arrows.length) return;
    const [start, arrival, top, , text] = data.arrows[nextArrow++ % data.arrows.length];
    const lane = lanes.find((lane) => top >= lane.top && top <= lane.top + lane.height), span = arrival - start;
    show(start - span, arrival + span);
    const index = lane.slices.findIndex((slice) => slice.kind === WAIT && slice.end > start && slice.start < arrival);
    if (index >= 0) choose(lane, lane.slices[index]);
    readout.textContent = text;
  };

  const findAt = (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const time = view[0] + (view[1] - view[0]) * x / box.width, near = NEAR_PX * (view[1] - view[0]) / box.width;
    const lane = lanes.find((lane) => y >= lane.top - 1 && y < lane.top + lane.height + 1);
    if (!lane) return { time };
    const index = findIndex(lane.slices, time), after = lane.slices[index], before = lane.slices[index - 1];
    if (after && after.start <= time) return { time, lane, slice: after };
    const [toAfter, toBefore] = [after ? after.start - time : Infinity, before ? time - before.end : Infinity];
    if (Math.min(toAfter, toBefore) <= near) return { time, lane, slice: toAfter < toBefore ? after : before };
    const start = before ? before.end : 0, end = after ? after.start : data.length;
    return { time, lane, slice: lane.name === "compute" ? { kind: -1, start, end, message: -1 } : null };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    dragged = { x: event.clientX, view };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (dragged) {
      const shift = (dragged.view[1] - dragged.view[0]) * (dragged.x - event.clientX) / canvas.clientWidth;
      show(dragged.view[0] + shift, dragged.view[1] + shift);
    } else {
      const { lane, slice } = findAt(event);
      if (slice) choose(lane, slice);
    }
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { dragged = null; });
  canvas.addEventListener("dblclick", showAll);
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) panBy((event.deltaX || event.deltaY) / width);
    else zoomBy(Math.exp(-event.deltaY * WHEEL), findAt(event).time);
  }, { passive: false });
  listenForKeys(canvas, {
    ArrowLeft: () => step(-1), ArrowRight: () => step(1), ArrowUp: () => changeLane(-1), ArrowDown: () => changeLane(1),
    PageUp: () => panBy(-PAGE), PageDown: () => panBy(PAGE), Home: () => showEnd(false), End: () => showEnd(true),
    "+": () => zoomBy(2, centre()), "=": () => zoomBy(2, centre()), "-": () => zoomBy(0.5, centre()),
    w: showNextWait, W: showNextWait, Escape: showAll,
  });
  find(".longest").addEventListener("click", showNextWait);
  find(".longest").disabled = !data.arrows.length;
  find(".closer").addEventListener("click", () => zoomBy(2, centre()));
  find(".wider").addEventListener("click", () => zoomBy(0.5, centre()));
  find(".reset").addEventListener("click", showAll);

  const changeColours = () => {
    readColours();
    redraw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changeColours);
  document.querySelector(".theme")?.addEventListener("change", changeColours);
  new ResizeObserver(redraw).observe(stage);
  addEventListener("beforeprint", () => times.replaceChildren(...wholeTimes));
  addEventListener("afterprint", drawTimes);
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", drawing.getAttribute("aria-label"));
  readColours();
  readout.textContent = data.arrows.length ? data.arrows[0][4] : "";
  stage.append(canvas);
  figure.classList.add("live");  // last: if something above fails, the drawing stays as it was
  showAll();
})();
