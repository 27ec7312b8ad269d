// Random valid bodies for each inference route.
import type { Draw } from './random.ts'
import { responseFormat, tools } from './schemas.ts'

export const paths = ['/chat/completions', '/chat/completions/batch', '/completions', '/embeddings'] as const
export type Path = (typeof paths)[number]

const texts = [
  'Hi',
  'Say yes.',
  'What is the weather in Paris?',
  'Zähle: eins, zwei,',
  '你好',
  '🙂🙂',
  'A list of words: '.repeat(30),
]

function sampling(draw: Draw): Record<string, unknown> {
  const some = (share: number, fields: object) => (draw.chance(share) ? fields : {})
  return {
    max_tokens: draw.int(1, 8),
    ...some(0.5, { temperature: draw.pick([0, 0.3, 1, 2]) }),
    ...some(0.2, { top_p: draw.pick([0, 0.1, 0.9, 1]) }),
    ...some(0.2, { top_k: draw.int(1, 100) }),
    ...some(0.2, { min_p: draw.next() }),
    ...some(0.2, { stop: draw.pick([' the', ['\n', '.'], ['a', 'b', 'c', 'd'], 'é']) }),
    ...some(0.2, { seed: draw.pick([0, 1, -1, 2 ** 40, Number.MAX_SAFE_INTEGER]) }),
    ...some(0.15, { n: draw.int(1, 4) }),
    ...some(0.15, { presence_penalty: draw.next() * 4 - 2 }),
    ...some(0.15, { frequency_penalty: draw.next() * 4 - 2 }),
    ...some(0.15, { repetition_penalty: 0.01 + draw.next() * 1.99 }),
    ...some(0.15, { logit_bias: { [draw.int(0, 49_151)]: draw.int(-100, 100), ...some(0.2, { 9999999: 5 }) } }),
    ...some(0.3, { stream: draw.chance(0.8) }),
    ...some(0.2, { stream_options: draw.pick([{ include_usage: true }, { include_usage: false }, {}, null]) }),
    ...some(0.1, { user: 'someone', metadata: { a: 'b' }, store: true, some_new_field: [1] }),
  }
}

function message(draw: Draw): object {
  const content = draw.chance(0.7)
    ? draw.pick(texts)
    : [{ type: 'text', text: draw.pick(texts) }, ...(draw.chance(0.3) ? [{ type: 'text', text: '' }] : [])]
  return { role: draw.pick(['user', 'user', 'user', 'system', 'developer', 'assistant']), content }
}

function messages(draw: Draw): object[] {
  const messages = Array.from({ length: draw.int(1, 4) }, () => message(draw))
  if (draw.chance(0.2))
    messages.push(
      {
        role: 'assistant',
        content: draw.pick([null, '', undefined]),
        tool_calls: [
          {
            id: 'call_1',
            type: 'function',
            function: { name: 'get_weather', arguments: draw.pick(['{}', '{"a":1}', 'not json', '']) },
          },
        ],
      },
      { role: 'tool', tool_call_id: draw.pick(['call_1', 'call_2']), content: 'Sunny.' },
    )
  if (draw.chance(0.05))
    messages.push({ role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } }] })
  return messages
}

function chat(draw: Draw): Record<string, unknown> {
  return {
    messages: messages(draw),
    ...sampling(draw),
    ...(draw.chance(0.2) && { logprobs: true, ...(draw.chance(0.6) && { top_logprobs: draw.int(0, 20) }) }),
    ...(draw.chance(0.3) && { response_format: responseFormat(draw) }),
    ...(draw.chance(0.25) && tools(draw)),
    ...(draw.chance(0.1) && { max_completion_tokens: draw.int(1, 8) }),
    ...(draw.chance(0.05) && {
      chat_template_kwargs: draw.pick([
        {},
        { enable_thinking: false },
        { messages: [] },
        { tools: 'x', raise_exception: 1 },
      ]),
    }),
  }
}

const tokens = (draw: Draw) =>
  Array.from({ length: draw.int(1, 12) }, () =>
    draw.chance(0.95) ? draw.int(0, 49_151) : draw.pick([49_152, 1e7, 2 ** 40]),
  )
const someTexts = (draw: Draw) => Array.from({ length: draw.int(1, 5) }, () => draw.pick(texts))
const input = (draw: Draw) =>
  draw.pick([() => draw.pick(texts), () => someTexts(draw), () => tokens(draw), () => [tokens(draw), tokens(draw)]])()

const makers: Record<Path, (draw: Draw, model: string) => Record<string, unknown>> = {
  '/chat/completions': (draw, model) => ({ model, ...chat(draw) }),
  '/chat/completions/batch': (draw, model) => {
    const shared = { model, ...sampling(draw), stream: undefined, stream_options: undefined }
    return {
      ...shared,
      requests: Array.from({ length: draw.int(1, 5) }, () => ({
        ...chat(draw),
        stream: undefined,
        stream_options: undefined,
      })),
    }
  },
  '/completions': (draw, model) => ({
    model,
    prompt: input(draw),
    ...sampling(draw),
    ...(draw.chance(0.2) && { echo: true }),
    ...(draw.chance(0.2) && { logprobs: draw.int(0, 20) }),
    ...(draw.chance(0.1) && { max_tokens: 0 }),
    ...(draw.chance(0.05) && draw.pick([{ suffix: 'z' }, { best_of: 2 }, { best_of: 1 }])),
  }),
  '/embeddings': (draw, model) => ({
    model,
    input: input(draw),
    ...(draw.chance(0.5) && { encoding_format: draw.pick(['float', 'base64']) }),
    ...(draw.chance(0.1) && { dimensions: draw.pick([1, 64, 576, 100_000]) }),
  }),
}

export const body = (path: Path, draw: Draw, model: string) => makers[path](draw, model)
