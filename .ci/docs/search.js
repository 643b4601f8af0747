// The search of the reference: `entries` of search-data.js whose name, or else whose summary, holds each word that is typed. Enter
// opens the first, the arrow keys go through them, / puts the cursor here.
const box = document.getElementById('search');
const results = document.getElementById('results');
const kinds = ['op', 'class', 'struct', 'function', 'page', 'row'];

// The smaller, the better; null: not found.
function rank(entry, words, typed) {
    const [name, kind, , summary] = entry;
    const whole = name.toLowerCase(), last = whole.split('::').pop();
    const lower = kind === 'member' && !words.some((word) => word.includes('::')) ? last : whole;
    if (name === typed) return -1;  // tensor() is not Tensor
    let sum = kinds.includes(kind) ? 0 : 0.5;
    for (const word of words) {
        if (whole === word) sum += 0;
        else if (last === word) sum += 1;
        else if (last.startsWith(word)) sum += 2 + last.length / 100;
        else if (lower.includes(word)) sum += 3 + lower.length / 100;
        else if (summary.toLowerCase().includes(word)) sum += 5;
        else return null;
    }
    return sum;
}

function find(text) {
    const words = text.toLowerCase().replace(/[().]+/g, ' ').split(/\s+/).filter(Boolean);
    if (!words.length) return [];
    const found = [];
    for (const entry of entries) {
        const value = rank(entry, words, text.trim());
        if (value !== null) found.push([value, entry]);
    }
    found.sort((a, b) => a[0] - b[0] || (a[1][0] < b[1][0] ? -1 : 1));
    return found.slice(0, 40).map((f) => f[1]);
}

function show() {
    const found = find(box.value);
    results.replaceChildren(...found.map(([name, kind, address, summary]) => {
        const item = document.createElement('li'), link = document.createElement('a');
        const title = document.createElement('b'), about = document.createElement('small'), text = document.createElement('span');
        title.textContent = name;
        about.textContent = kind;
        text.textContent = summary;
        link.href = address;
        link.append(title, ' ', about, text);
        item.append(link);
        return item;
    }));
    if (box.value.trim() && !found.length) {
        const item = document.createElement('li');
        item.textContent = 'Nothing found';
        results.append(item);
    }
    document.body.classList.toggle('searching', box.value.trim() !== '');
}

box.addEventListener('input', show);
document.addEventListener('keydown', (event) => {
    const links = [...results.querySelectorAll('a')], at = links.indexOf(document.activeElement);
    if (event.key === '/' && document.activeElement !== box) box.focus(), box.select(), event.preventDefault();
    else if (event.key === 'Enter' && document.activeElement === box && links.length) links[0].click();
    else if (event.key === 'Escape') (box.value = ''), show();
    else if (event.key === 'ArrowDown' && links.length && (at >= 0 || document.activeElement === box))
        links[Math.min(at + 1, links.length - 1)].focus(), event.preventDefault();
    else if (event.key === 'ArrowUp' && at >= 0) (at ? links[at - 1] : box).focus(), event.preventDefault();
});
