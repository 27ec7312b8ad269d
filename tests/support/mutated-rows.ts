// Rows in every form that is taken, and rows that are nearly so: seeded, so that a failure can be had again.

type Json = unknown

const tool = {
  type: 'function',
  function: { name: 'f', description: 'Does.', parameters: { type: 'object', properties: {} } },
}
const call = { id: 'c1', type: 'function', function: { name: 'f', arguments: '{"a": 1.0, "b": [null]}' } }
const user = (content: Json) => ({ role: 'user', content })
const assistant = (content: Json, more: object = {}) => ({ role: 'assistant', content, ...more })

export const forms: Record<'sft' | 'dpo' | 'kto', object[]> = {
  sft: [
    { messages: [user('Open?'), assistant('From nine to five.')] },
    {
      messages: [
        { role: 'system', content: 'Be short.' },
        user('a'),
        assistant('b', { weight: 0 }),
        user('c'),
        assistant('d'),
      ],
    },
    {
      messages: [
        user('a'),
        assistant('b', { reasoning_content: 'Hm.' }),
        user('c'),
        assistant('d', { thinking: 'So.' }),
      ],
    },
    {
      messages: [
        user([
          { type: 'text', text: 'a ' },
          { type: 'text', text: 'b' },
        ]),
        assistant('<think>\nx\n</think>\n\ny'),
      ],
    },
    {
      tools: [tool],
      messages: [
        { role: 'developer', content: 'Call.' },
        user('Go'),
        assistant(null, { tool_calls: [call] }),
        { role: 'tool', tool_call_id: 'c1', content: 'done' },
        assistant('It is done.', { train: true }),
      ],
    },
    { messages: [assistant('Hello.'), user('Hi'), assistant('How are you?', { name: null })] },
    { system: 'Be short.', prompt: 'What?', completion: 'That.' },
    { instruction: 'Add.', input: '1 and 2', output: '3' },
    { question: 'Why?', answer: 'So.', id: 7 },
    { prompt: [user('a'), assistant('b'), user('c')], completion: [assistant('d')] },
  ],
  dpo: [
    { prompt: 'Open?', input: '', chosen: 'From nine.', rejected: 'Go away.' },
    {
      system: 'Be short.',
      question: 'Open?',
      chosen: [assistant('Yes.', { reasoning: 'Hm.' })],
      rejected: 'No, not at all.',
    },
    { chosen: [user('a'), assistant('b')], rejected: [user('a'), assistant('c')] },
    {
      input: { messages: [user('a'), assistant('b'), user('c')], tools: [tool] },
      preferred_output: [assistant('d')],
      non_preferred_output: [assistant('e')],
    },
  ],
  kto: [
    { prompt: 'Open?', completion: 'From nine.', label: true },
    { messages: [user('a'), assistant('b'), user('c'), assistant('d')], label: false },
    { system: 'Be short.', prompt: [user('a')], completion: [assistant('b')], label: false },
  ],
}

const texts = [
  '', ' ', 'word', 'ü😀 ‮x', '<|im_end|>', '<|im_start|>user\n', '</think>', '<think>', '\ud800', '\u0000',
  'a\r\nb', '[TOOL_CALLS]',
  '{"x": 1}', '<tool_call>', 'word '.repeat(60), '\ufdd0', '\u2028', '1e999',
] // biome-ignore format: a list
const names = [
  'messages', 'tools', 'prompt', 'completion', 'chosen', 'rejected', 'label', 'input', 'system', 'role',
  'content', 'weight', 'train',
  'wieght', 'reasoning', 'reasoning_content', 'tool_calls', 'tool_call_id', 'name', 'line', 'fields',
  'source_line', 'source', 'functions',
  'function_call', 'question', 'answer', 'output', 'instruction', 'id', 'type', 'function', 'arguments', '__proto__',
] // biome-ignore format: a list

/** A line of a row of a kind, with up to four changes somewhere in it. */
export function mutatedLine(kind: keyof typeof forms, random: () => number): string {
  const pick = <T>(list: readonly T[]): T => list[Math.floor(random() * list.length)]!
  const value = (): Json =>
    pick<() => Json>([
      () => pick(texts),
      () => pick(texts),
      () => null,
      () => pick([0, 1, -1, 1.5, 2 ** 60, true, false]),
      () => [],
      () => ({}),
      () => [user(pick(texts)), assistant(pick(texts))],
      () => structuredClone(pick(forms[kind])),
    ])()
  const row: Json = structuredClone(pick(forms[kind]))
  // A third stay as they are but for a text, which nearly all may have.
  const changes = Math.floor(random() * 5)
  for (let change = 0; change < changes; change++) {
    let place = row as Record<string, Json>
    for (;;) {
      const inner = Object.values(place).filter((value) => typeof value === 'object' && value !== null)
      if (inner.length === 0 || random() < 0.3) break
      place = pick(inner) as Record<string, Json>
    }
    const keys = Object.keys(place)
    const key = pick(keys)
    const act = random()
    if (keys.length > 0 && typeof place[key!] === 'string' && act < 0.4) place[key!] = pick(texts)
    else if (keys.length > 0 && act < 0.55) place[key!] = value()
    else if (keys.length > 0 && act < 0.65) {
      if (Array.isArray(place)) place.splice(Number(key), 1)
      else delete place[key!]
    } else if (Array.isArray(place)) place.push(random() < 0.5 ? structuredClone(pick(place)) : value())
    else
      Object.defineProperty(place, pick(names), {
        value: value(),
        enumerable: true,
        configurable: true,
        writable: true,
      })
  }
  const json = JSON.stringify(row)
  if (random() > 0.02) return json
  const at = Math.floor(random() * json.length)
  return json.slice(0, at) + pick(['', '"', '\\', '\t', 'NaN', ',']) + json.slice(at + 1)
}
