// Learns where thoughts stand in a model's answers from its chat template: renders an answer with thoughts, and finds
// the texts around them.
import { type CallShape, commonPrefix, triggerOf } from '../grammar/call-shape.ts'
import { type Probe, probeTools, withoutOpenMarker } from './learn-calls.ts'

/** The names under which templates read thoughts of earlier answers, and clients send them. */
export const thoughtFields = ['reasoning_content', 'reasoning', 'thinking'] as const
/** `content`: as parts of the content of the type `thinking`. */
export type ThoughtField = (typeof thoughtFields)[number] | 'content'

export interface Thoughts {
  /** Texts around thoughts, without blanks beside them. */
  open: string
  close: string
  /** Blanks between the thoughts' end and what follows. */
  gap: string
  /** Text before an answer that follows thoughts or has none (harmony's channel of answers), and after it. */
  answer: { open: string; close: string }
}

export interface LearnedThoughts {
  /** Null if the template writes no thoughts of answers. */
  field: ThoughtField | null
  /** Null if the model does not think. */
  thoughts: Thoughts | null
  /** Whether the template refuses calls that have both thoughts and content before them. */
  excludes_content: boolean
  /** Whether every prompt ends as thoughts do: with the end of a message and the start of an answer (harmony). */
  closed_as_turns: boolean
}

const [said, thought, answered] = ['Zq asks.', 'Zq thinks.', 'Zq answers.']
const user = { role: 'user', content: said }

/** Settings with which a template may show thoughts. */
const settings = [
  {},
  { enable_thinking: true, thinking: true, thinking_mode: 'thinking' },
  { enable_thinking: false, thinking: false, thinking_mode: 'chat' },
]
const noThoughts: LearnedThoughts = { field: null, thoughts: null, excludes_content: false, closed_as_turns: false }

/** `calls`: how the template writes calls, as some show thoughts only before them. */
export function learnThoughts(
  source: string,
  probe: Probe,
  end_texts: readonly string[],
  calls: { shape: CallShape | null; arguments: 'object' | 'text' },
): LearnedThoughts {
  const found = findThoughts(source, probe, end_texts, calls)
  const learned = { ...found, closed_as_turns: found.thoughts !== null && closesTurns(probe, found.thoughts) }
  if (learned.field === null || learned.field === 'content' || !calls.shape) return learned
  const refuses = (content: string) =>
    probe([user, { role: 'assistant', content, [learned.field!]: thought, tool_calls: [probeCall(calls.arguments)] }], {
      tools: probeTools,
    }) === null
  return { ...learned, excludes_content: refuses(answered) && !refuses('') }
}

function closesTurns(probe: Probe, { open, close }: Thoughts): boolean {
  return settings.every((setting) => {
    const prompt = probe([user], { ...setting, add_generation_prompt: true })?.trimEnd()
    return prompt?.endsWith(close) && !prompt.slice(0, -close.length).trimEnd().endsWith(open)
  })
}

const probeCall = (form: 'object' | 'text') => ({
  id: 'zqcall000',
  type: 'function',
  function: { name: probeTools[0]!.function.name, arguments: form === 'object' ? {} : '{}' },
})

function findThoughts(
  source: string,
  probe: Probe,
  end_texts: readonly string[],
  calls: { shape: CallShape | null; arguments: 'object' | 'text' },
): LearnedThoughts {
  const fields: ThoughtField[] = thoughtFields.filter((field) => source.includes(field))
  const answers = fields.map((field) => ({ field, answer: { role: 'assistant', content: answered, [field]: thought } }))
  if (/['"]thinking['"]/.test(source)) {
    const content = [
      { type: 'thinking', thinking: thought },
      { type: 'text', text: answered },
    ]
    answers.push({ field: 'content', answer: { role: 'assistant', content } as never })
  }
  /** Each way to write an answer with thoughts, and what follows them. */
  const written = [
    ...answers.map((each) => ({ ...each, next: answered, tools: {} })),
    ...answers
      .filter(({ field }) => calls.shape && field !== 'content')
      .map(({ field, answer }) => ({
        field,
        answer: { ...answer, content: '', tool_calls: [probeCall(calls.arguments)] },
        next: triggerOf(calls.shape!),
        tools: { tools: probeTools },
      })),
  ]
  let shown: ThoughtField | null = null
  for (const { field, answer, next, tools } of written)
    for (const setting of settings) {
      const variables = { ...setting, ...tools }
      if (!probe([user, answer], variables)?.includes(thought)) continue
      shown ??= field
      const thoughts = aroundThought(probe, answer, next, variables, end_texts)
      if (thoughts) return { ...noThoughts, field: shown, thoughts }
    }
  const unmarked = { ...noThoughts, field: shown }
  // Where thinking is off, a prompt may end in thoughts without text.
  const off = probe([user], { ...settings[2], add_generation_prompt: true })
  const on = probe([user], { ...settings[1], add_generation_prompt: true })
  const closed = off?.slice(commonPrefix(off, on ?? '').length).trim()
  const [, open, close] = /^(<[^<>]+>[^<>]*)(<[^<>]+>)$/.exec(closed ?? '') ?? []
  if (open !== undefined && off!.endsWith(closed!))
    return { ...unmarked, thoughts: { open: open.trimEnd(), close: close!, gap: '', answer: { open: '', close: '' } } }
  // Some prompts begin thoughts that the template leaves out of answers.
  if (!source.includes('<think>')) return unmarked
  return { ...unmarked, thoughts: { open: '<think>', close: '</think>', gap: '\n\n', answer: { open: '', close: '' } } }
}

/** The texts around the thought of this answer, which goes on with `next`. */
function aroundThought(
  probe: Probe,
  answer: object,
  next: string,
  variables: Record<string, unknown>,
  endTexts: readonly string[],
): Thoughts | null {
  const text = probe([user, answer], variables)
  const at = text?.lastIndexOf(thought) ?? -1
  const end = text?.indexOf(next, at + thought.length) ?? -1
  if (text === null || at < 0 || end < at) return null
  const prompt = probe([user], { ...variables, add_generation_prompt: true }) ?? ''
  const lead = text.slice(withoutOpenMarker(commonPrefix(text, prompt)).length, at).trim()
  // The prompt itself may begin thoughts.
  const open = lead || /(?:<[^<>\s]+>|\[[A-Z_]+\])$/.exec(text.slice(0, at).trimEnd())?.[0]
  const between = text.slice(at + thought.length, end)
  const plain = probe([user, { role: 'assistant', content: answered }], variables) ?? ''
  const start = withoutOpenMarker(commonPrefix(plain, prompt)).length
  const before = next === answered ? plain.slice(start, Math.max(start, plain.lastIndexOf(answered))) : ''
  const isWrapped = before.trim() !== '' && between.endsWith(before) && between.trim() !== before.trim()
  const closing = isWrapped ? between.slice(0, between.length - before.length) : between
  // Text of the turn before is no marker.
  if (!open || [said, probeTools[0]!.function.name].some((one) => (open + closing).includes(one))) return null
  if (closing.trim() === '') return null
  const after = text.slice(end + answered.length)
  const marks = endTexts.map((one) => (one === '' ? -1 : after.indexOf(one))).filter((one) => one >= 0)
  return {
    open,
    close: closing.trim(),
    gap: closing.slice(closing.trimEnd().length),
    answer: {
      open: isWrapped ? before.trim() : '',
      close: isWrapped && marks.length > 0 ? after.slice(0, Math.min(...marks)).trim() : '',
    },
  }
}
