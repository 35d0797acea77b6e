// What is live on the pages of the console: times, countdowns, copy buttons, pause, charts, the
// availability map. Everything else works without it.
'use strict';
(() => {
  const root = document.documentElement;
  root.classList.add('has-js');
  const all = (selector, f, within = document) => within.querySelectorAll(selector).forEach(f);

  // The clock of the page: the server's, because deadlines are by Redis' clock and not by this machine's.
  const stamp = document.querySelector('time[data-now]');
  const ahead = stamp ? Date.parse(stamp.dateTime) - performance.timeOrigin - performance.now() : 0;
  const now = () => performance.timeOrigin + performance.now() + ahead;

  const pad = n => String(n).padStart(2, '0');
  const age = ms => {
    const s = Math.abs(ms) / 1000;
    if (s < 60) return Math.floor(s) + ' s';
    if (s < 3600) return Math.floor(s / 60) + ' min';
    return s < 172800 ? Math.floor(s / 3600) + ' h' : Math.floor(s / 86400) + ' days';
  };
  let mode = localStorage.getItem('holdfast-time') || 'utc';
  const shown = t => {
    const at = new Date(t.dateTime);
    if (mode === 'relative') return at > now() ? 'in ' + age(at - now()) : age(now() - at) + ' ago';
    if (mode === 'utc') return at.toISOString().slice(0, 19).replace('T', ' ') + ' UTC';
    return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ` +
      `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  };
  const times = () => all('time', t => {
    if ('until' in t.dataset) {
      const left = Math.ceil((Date.parse(t.dateTime) - now()) / 1000);
      t.textContent = left > 0 ? `${Math.floor(left / 60)}:${pad(left % 60)}` : 'passed';
      t.title = t.dateTime;
      t.classList.toggle('soon', left < 60);
      return;
    }
    const text = shown(t);
    if (t.textContent !== text) t.textContent = text;
    t.title = t.dateTime;
  });
  const mark = () => all('[data-time]', b => b.setAttribute('aria-pressed', b.dataset.time === mode));

  let paused = false;
  const pause = document.getElementById('pause');
  const toggle = () => {
    paused = !paused;
    pause.setAttribute('aria-pressed', paused);
    pause.textContent = paused ? 'Paused' : 'Pause';
  };
  const held = e => { if (paused) e.preventDefault(); };
  document.addEventListener('htmx:sseBeforeMessage', held);
  document.addEventListener('htmx:beforeRequest', held);
  document.addEventListener('htmx:afterSettle', () => { times(); });
  document.addEventListener('keydown', e => {
    if (pause && e.key === 'p' && !e.ctrlKey && !e.metaKey && !e.altKey && !e.target.matches('input, textarea, select')) toggle();
  });

  document.addEventListener('click', async e => {
    const button = e.target.closest('button');
    if (!button) return;
    if (button === pause) toggle();
    if (button.dataset.time) {
      mode = button.dataset.time;
      localStorage.setItem('holdfast-time', mode);
      mark();
      times();
    }
    if (button.dataset.copy) {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.classList.add('done');
      setTimeout(() => button.classList.remove('done'), 1500);
    }
    if ('all' in button.dataset) all('input[name=seq]', box => { box.checked = true; });
  });

  // Held cells fade until the earliest deadline, within five minutes.
  const fade = () => all('[data-u]', cell => {
    cell.style.setProperty('--left', (.3 + .7 * Math.min(1, Math.max(0, (cell.dataset.u - now()) / 300000))).toFixed(2));
  });

  // The rows of the map that are not near the window are not in the document.
  const gap = body => {
    const height = 27 * body.dataset.rows;
    body.innerHTML = '<tr><td></td></tr>';
    body.rows[0].cells[0].style.height = height + 'px';
  };
  const seen = new IntersectionObserver(entries => entries.forEach(async ({target, isIntersecting}) => {
    if (!isIntersecting) { if (target.dataset.full) { delete target.dataset.full; gap(target); } return; }
    if (target.dataset.full) return;
    target.dataset.full = 'yes';
    const answer = await fetch(target.dataset.src).catch(() => ({}));
    if (answer.redirected) { location.reload(); return; } // the session has ended
    const rows = answer.ok && await answer.text();
    if (!target.dataset.full) return; // it was scrolled away meanwhile
    if (rows) { target.innerHTML = rows; fade(); return; } // html/template has escaped them
    delete target.dataset.full;
    setTimeout(() => { seen.unobserve(target); seen.observe(target); }, 2000); // the worker was busy
  }), {rootMargin: '800px'});
  all('tbody[data-src]', body => { gap(body); seen.observe(body); });
  document.addEventListener('click', e => {
    const cell = e.target.closest('.map td:not(.note)');
    const name = cell && cell.parentNode.querySelector('th a');
    const slot = name && document.querySelectorAll('.map thead th')[cell.cellIndex].dataset.slot;
    if (slot) location.href = name.href + '?slot=' + slot;
  });

  // The chart of the table behind it: the first column is the time, the second a count, the others are numbers.
  all('#chart + section table', table => {
    const columns = [...table.tHead.rows[0].cells].map(cell => cell.textContent);
    const digits = cell => Number(cell.textContent.replace(/[^0-9.-]/g, ''));
    const rows = [...table.tBodies[0].rows];
    const css = name => getComputedStyle(root).getPropertyValue(name);
    const end = now() / 1000, framed = (first, values, last) => [first, ...values, last];
    const data = [framed(end - 3600, rows.map(row => Date.parse(row.cells[0].querySelector('time').dateTime) / 1000), end)];
    for (let n = 2; n < columns.length; n++) data.push(framed(null, rows.map(row => Math.max(1, digits(row.cells[n]))), null));
    data.push(framed(2000, rows.map(() => 2000), 2000));
    const axis = {stroke: css('--mute'), grid: {stroke: css('--line')}, ticks: {stroke: css('--line')}};
    const date = '\n{YYYY}-{MM}-{DD}'; // where the day changes
    const labels = (seconds, time) => [seconds, time, date, null, date, null, null, null, 1];
    const line = (label, color, more) => ({label, stroke: css(color), width: 2, points: {show: rows.length < 40}, ...more});
    const chart = document.getElementById('chart');
    const size = () => ({width: chart.parentNode.clientWidth - 60, height: 220});
    const plot = new uPlot({
      ...size(), tzDate: t => uPlot.tzDate(new Date(t * 1e3), mode === 'local' ? undefined : 'Etc/UTC'),
      scales: {y: {distr: 3, range: (u, low, high) => [1, Math.max(10000, high)]}}, axes: [
        {...axis, values: [labels(60, '{HH}:{mm}'), labels(1, '{HH}:{mm}:{ss}')]},
        {...axis, label: 'ms', size: 60, splits: () => [1, 10, 100, 1000, 10000]},
      ],
      series: [{value: '{YYYY}-{MM}-{DD} {HH}:{mm}'}, line('median', '--ok'), line('p99', '--warn'), line('maximum', '--bad'), line('promised: 2 s', '--mute', {dash: [6, 4], points: {show: false}})],
    }, data, chart);
    addEventListener('resize', () => plot.setSize(size()));
    addEventListener('click', e => { if (e.target.closest('[data-time]')) plot.redraw(false, true); }); // after mode has changed
  });

  mark();
  times();
  fade();
  setInterval(fade, 5000);
  setInterval(times, 1000);
})();
