const byId = id => document.getElementById(id);
const main = document.querySelector('main');
const figures = [...main.children];

function show(figure, index) {
  const maps = figure.querySelectorAll('.map img');
  const last = Math.min(index, maps.length - 1);
  maps.forEach((map, i) => { map.hidden = i !== last; });
  figure.querySelectorAll('.tabs button').forEach((tab, i) => tab.setAttribute('aria-pressed', i === last));
}

function find() {
  const words = byId('find').value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const figure of figures) {
    const fits = words.every(word => figure.dataset.words.includes(word));
    figure.hidden = !fits;
    count += fits;
  }
  byId('count').textContent = count + (count === 1 ? ' image' : ' images');
}

main.addEventListener('click', event => {
  const tab = event.target.closest('.tabs button');
  if (tab) show(tab.closest('figure'), [...tab.parentNode.children].indexOf(tab));
});
byId('find').addEventListener('input', find);
byId('which').addEventListener('change', event => figures.forEach(f => show(f, Number(event.target.value))));
byId('order').addEventListener('change', event => {
  const sign = { unsure: 1, sure: -1 }[event.target.value];
  const sure = figure => Number(figure.dataset.sure);
  main.append(...(sign ? [...figures].sort((a, b) => sign * (sure(a) - sure(b))) : figures));
});
byId('strength').addEventListener('input', event => main.style.setProperty('--strength', event.target.value / 100));
byId('size').addEventListener('input', event => main.style.setProperty('--side', event.target.value + 'px'));
byId('beside').addEventListener('change', event => main.classList.toggle('alone', !event.target.checked));
document.querySelector('form').addEventListener('submit', event => event.preventDefault());
find();
