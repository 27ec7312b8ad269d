// A model's chat template in the language of Ollama's, which is another (Go's). Nothing is translated: the template is
// asked what it writes around the messages of a few conversations, and what is made of that is compared with what it
// writes of others.
import { Template } from '@huggingface/jinja'

interface Message {
  role: 'system' | 'user' | 'assistant'
  content: string
}

/** What stands around the messages. */
interface Pieces {
  /** Before everything. */
  opening: { beforeSystem: string; beforeOthers: string }
  system: [before: string, after: string]
  user: [before: string, after: string]
  assistant: [before: string, after: string]
  /** After the last user's message, where the answer begins. */
  prompt: string
}

const [S, U, A, V] = ['qSYSTEMq', 'qUSERq', 'qANSWERq', 'qNEXTq'] as const
const system = (content: string): Message => ({ role: 'system', content })
const user = (content: string): Message => ({ role: 'user', content })
const assistant = (content: string): Message => ({ role: 'assistant', content })

/** The text of a Modelfile's TEMPLATE; undefined where what the template does cannot be said in it exactly. */
export function ollamaTemplate(jinja: string, tokens: { bos_token: string; eos_token: string }): string | undefined {
  try {
    const template = new Template(jinja)
    const render = (messages: Message[]) => template.render({ messages, add_generation_prompt: true, ...tokens })
    const wanted = [
      ...conversations.map((messages) => [messages, render(messages)] as const),
      ...rendered(render, unusual),
    ]
    const pieces = piecesOf(render).find((each) => wanted.every(([messages, text]) => written(each, messages) === text))
    if (!pieces) return undefined
    const text = inGo(pieces)
    // Nothing could stand for these in a Modelfile.
    return text.includes('"""') ? undefined : text
  } catch {
    // It refuses one of the conversations (some know no system), or uses what cannot be told by rendering.
    return undefined
  }
}

/** What the template writes of those conversations that it takes. */
function rendered(render: (messages: Message[]) => string, asked: Message[][]): [Message[], string][] {
  return asked.flatMap((messages): [Message[], string][] => {
    try {
      return [[messages, render(messages)]]
    } catch {
      return []
    }
  })
}

/** Every way to cut what stands between messages into what ends one and what begins the next. */
function piecesOf(render: (messages: Message[]) => string): Pieces[] {
  const one = parts(render([user(U)]), [U])
  const withSystem = parts(render([system(S), user(U)]), [S, U])
  const three = parts(render([user(U), assistant(A), user(V)]), [U, A, V])
  if (!one || !withSystem || !three) return []
  const [first, prompt] = one as [string, string]
  const [beforeSystem, afterSystem] = withSystem as [string, string]
  const [, beforeAnswer, afterAnswer] = three as [string, string, string]
  const common = commonEnd(commonEnd(first, afterSystem), afterAnswer)
  return cuts(common).flatMap((cut) => {
    const beforeUser = common.slice(cut)
    const without = (text: string) => text.slice(0, text.length - beforeUser.length)
    return cuts(beforeAnswer).flatMap((end) =>
      cuts(beforeSystem).map(
        (begin): Pieces => ({
          opening: { beforeSystem: beforeSystem.slice(0, begin), beforeOthers: without(first) },
          system: [beforeSystem.slice(begin), without(afterSystem)],
          user: [beforeUser, beforeAnswer.slice(0, end)],
          assistant: [beforeAnswer.slice(end), without(afterAnswer)],
          prompt,
        }),
      ),
    )
  })
}

/**
 * Where a text may be cut: at its ends, before what looks like a token, behind the end of a line. Never in the middle
 * of a token.
 */
function cuts(text: string): number[] {
  const inside = [...text.matchAll(/<[^>]*>|(?<=\n)./gs)].map(({ index }) => index)
  // The beginning of a text may be the end of a token that stands before it.
  return [...new Set([...(/^[^<]*>/.test(text) ? [] : [0]), ...inside, text.length])].sort((a, b) => a - b)
}

/** The text before, between and after the given ones, each of which must stand in it once. */
function parts(text: string, contents: string[]): string[] | undefined {
  const found: string[] = []
  let rest = text
  for (const content of contents) {
    const halves = rest.split(content)
    if (halves.length !== 2) return undefined
    found.push(halves[0]!)
    rest = halves[1]!
  }
  return [...found, rest]
}

function commonEnd(one: string, other: string): string {
  let length = 0
  while (
    length < Math.min(one.length, other.length) &&
    one[one.length - 1 - length] === other[other.length - 1 - length]
  )
    length++
  return one.slice(one.length - length)
}

/** What the pieces make of a conversation, as Go's template does. */
function written({ opening, system, user, assistant, prompt }: Pieces, messages: Message[]): string {
  const last = messages.length - 1
  const said = messages.map(({ role, content }, index) => {
    if (role === 'system') return system[0] + content + system[1]
    if (role === 'user') return user[0] + content + (index === last ? prompt : user[1])
    return assistant[0] + content + assistant[1]
  })
  return (messages[0]!.role === 'system' ? opening.beforeSystem : opening.beforeOthers) + said.join('')
}

const conversations: Message[][] = [
  [user('Hello.')],
  [system('Be brief.'), user('Hello there, how are you?')],
  [user('a'), assistant('b\nc'), user('{d}')],
  [system('Be kind.\nBe brief.'), user('one'), assistant('two'), user('three'), assistant('four'), user('five')],
  [user('1'), assistant('2'), user('3'), assistant('4'), user('5'), assistant('6'), user('7')],
]

/** What many templates refuse: it must come out right where they do not. */
const unusual: Message[][] = [
  [user('a'), system('b'), user('c')],
  [user('a'), assistant('b'), system('c'), user('d')],
  [user('a'), user('b')],
  [system('a'), system('b'), user('c')],
]

function inGo({ opening, system, user, assistant, prompt }: Pieces): string {
  // Go reads two braces as the beginning of its own, also where the second is one that follows the piece.
  const text = (piece: string) => piece.replaceAll('{{', '{{ "{{" }}').replace(/\{$/, '{{ "{" }}')
  const { beforeSystem, beforeOthers } = opening
  const either = `{{ if eq .Role "system" }}${text(beforeSystem)}{{ else }}${text(beforeOthers)}{{ end }}`
  const first =
    beforeSystem + beforeOthers === ''
      ? ''
      : `{{ if eq $i 0 }}${beforeSystem === beforeOthers ? text(beforeOthers) : either}{{ end }}`
  const said = (piece: [string, string]) => `${text(piece[0])}{{ .Content }}${text(piece[1])}`
  const between = user[1] && `{{ else }}${text(user[1])}`
  const asked = `${text(user[0])}{{ .Content }}{{ if eq (len (slice $.Messages $i)) 1 }}${text(prompt)}${between}{{ end }}`
  return `{{ range $i, $_ := .Messages }}${first}{{ if eq .Role "system" }}${said(system)}{{ else if eq .Role "user" }}${asked}{{ else if eq .Role "assistant" }}${said(assistant)}{{ end }}{{ end }}`
}
