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
  document.addEventListener('htmx:afterSettle', times);
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

  mark();
  times();
  setInterval(times, 1000);
})();
