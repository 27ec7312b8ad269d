// Learns which token ends an answer from the chat template, as the trainer does (trainer/data/ends.py): a file may name
// another, as of the base that a chat model was trained from.
import type { Probe } from './learn-calls.ts'

const [said, answered, more] = ['Zq asks.', 'Zq answers.', 'Zq asks more.']
const user = { role: 'user', content: said }
const conversation = [user, { role: 'assistant', content: answered }]

/**
 * The first of the special texts that the template writes behind an answer, else the one that begins the next message.
 * Null if there is none, or one there ends answers already: what comes before it may end thoughts, too.
 */
export function learnEnd(
  probe: Probe,
  special_texts: readonly string[],
  isEnd: (text: string) => boolean,
): string | null {
  const text = probe(conversation)
  const at = text?.lastIndexOf(answered) ?? -1
  if (text === null || at < 0) return null
  const longer = probe([...conversation, { role: 'user', content: more }])
  const behind = text.slice(at + answered.length)
  const next = longer?.startsWith(text) ? longer.slice(text.length) : ''
  const texts = special_texts.filter((each) => each !== '').toSorted((a, b) => b.length - a.length)
  const written = texts.filter((each) => behind.includes(each))
  const begins = texts.find((each) => next.startsWith(each))
  const candidates = written.length > 0 ? written : begins === undefined ? [] : [begins]
  if (candidates.some(isEnd)) return null
  return candidates.toSorted((a, b) => behind.indexOf(a) - behind.indexOf(b))[0] ?? null
}
