// Converts a Jinja chat template to Ollama's template language (Go). The template is not translated: the text around
// messages is taken from a few rendered conversations, and the result is verified against others.
import { Template } from '@huggingface/jinja'

interface Message {
  role: 'system' | 'user' | 'assistant'
  content: string
}

/** The text around messages. */
interface Pieces {
  /** Before everything. */
  opening: { beforeSystem: string; beforeOthers: string }
  system: [before: string, after: string]
  user: [before: string, after: string]
  assistant: [before: string, after: string]
  /** After the last user message: the generation prompt. */
  prompt: string
}

const [S, U, A, V] = ['qSYSTEMq', 'qUSERq', 'qANSWERq', 'qNEXTq'] as const
const system = (content: string): Message => ({ role: 'system', content })
const user = (content: string): Message => ({ role: 'user', content })
const assistant = (content: string): Message => ({ role: 'assistant', content })

/** The text for a Modelfile's TEMPLATE; undefined if the chat template cannot be expressed exactly. */
export function ollamaTemplate(jinja: string, tokens: { bos_token: string; eos_token: string }): string | undefined {
  try {
    const template = new Template(jinja)
    const render = (messages: Message[]) => template.render({ messages, add_generation_prompt: true, ...tokens })
    const expected = [
      ...conversations.map((messages) => [messages, render(messages)] as const),
      ...renderAccepted(render, unusual),
    ]
    const pieces = candidatePieces(render).find((candidate) =>
      expected.every(([messages, text]) => renderPieces(candidate, messages) === text),
    )
    if (!pieces) return undefined
    const text = toGoTemplate(pieces)
    // A Modelfile has no escape for triple quotes.
    return text.includes('"""') ? undefined : text
  } catch {
    // The template rejects a conversation (some have no system role), or uses something unsupported.
    return undefined
  }
}

/** Renders the conversations that the template accepts. */
function renderAccepted(render: (messages: Message[]) => string, candidates: Message[][]): [Message[], string][] {
  return candidates.flatMap((messages): [Message[], string][] => {
    try {
      return [[messages, render(messages)]]
    } catch {
      return []
    }
  })
}

/** All ways to cut the text between messages into the end of one and the start of the next. */
function candidatePieces(render: (messages: Message[]) => string): Pieces[] {
  const one = splitAround(render([user(U)]), [U])
  const withSystem = splitAround(render([system(S), user(U)]), [S, U])
  const three = splitAround(render([user(U), assistant(A), user(V)]), [U, A, V])
  if (!one || !withSystem || !three) return []
  const [first, prompt] = one as [string, string]
  const [beforeSystem, afterSystem] = withSystem as [string, string]
  const [, beforeAnswer, afterAnswer] = three as [string, string, string]
  const common = commonSuffix(commonSuffix(first, afterSystem), afterAnswer)
  return cutPositions(common).flatMap((cut) => {
    const beforeUser = common.slice(cut)
    const without = (text: string) => text.slice(0, text.length - beforeUser.length)
    return cutPositions(beforeAnswer).flatMap((end) =>
      cutPositions(beforeSystem).map(
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

/** Where a text may be cut: at its ends, before a special token, after a line break. Never inside a token. */
function cutPositions(text: string): number[] {
  const inside = [...text.matchAll(/<[^<>]*>|(?<=\n)./gs)].map(({ index }) => index)
  // The text may start with the end of a token.
  return [...new Set([...(/^[^<]*>/.test(text) ? [] : [0]), ...inside, text.length])].sort((a, b) => a - b)
}

/** The text before, between and after the given contents; undefined unless each occurs exactly once. */
function splitAround(text: string, contents: string[]): string[] | undefined {
  const texts: string[] = []
  let rest = text
  for (const content of contents) {
    const halves = rest.split(content)
    if (halves.length !== 2) return undefined
    texts.push(halves[0]!)
    rest = halves[1]!
  }
  return [...texts, rest]
}

function commonSuffix(one: string, other: string): string {
  let length = 0
  while (
    length < Math.min(one.length, other.length) &&
    one[one.length - 1 - length] === other[other.length - 1 - length]
  )
    length++
  return one.slice(one.length - length)
}

/** Renders a conversation from the pieces, as the Go template does. */
function renderPieces({ opening, system, user, assistant, prompt }: Pieces, messages: Message[]): string {
  const last = messages.length - 1
  const rendered = messages.map(({ role, content }, index) => {
    if (role === 'system') return system[0] + content + system[1]
    if (role === 'user') return user[0] + content + (index === last ? prompt : user[1])
    return assistant[0] + content + assistant[1]
  })
  return (messages[0]!.role === 'system' ? opening.beforeSystem : opening.beforeOthers) + rendered.join('')
}

const conversations: Message[][] = [
  [user('Hello.')],
  [system('Be brief.'), user('Hello there, how are you?')],
  [user('a'), assistant('b\nc'), user('{d}')],
  [system('Be kind.\nBe brief.'), user('one'), assistant('two'), user('three'), assistant('four'), user('five')],
  [user('1'), assistant('2'), user('3'), assistant('4'), user('5'), assistant('6'), user('7')],
]

/** Conversations that many templates reject: they are verified only if the template accepts them. */
const unusual: Message[][] = [
  [user('a'), system('b'), user('c')],
  [user('a'), assistant('b'), system('c'), user('d')],
  [user('a'), user('b')],
  [system('a'), system('b'), user('c')],
]

function toGoTemplate({ opening, system, user, assistant, prompt }: Pieces): string {
  // Escape `{{` for Go, including a last `{` that would join with the brace after the piece.
  const text = (piece: string) => piece.replaceAll('{{', '{{ "{{" }}').replace(/\{$/, '{{ "{" }}')
  const { beforeSystem, beforeOthers } = opening
  const either = `{{ if eq .Role "system" }}${text(beforeSystem)}{{ else }}${text(beforeOthers)}{{ end }}`
  const first =
    beforeSystem + beforeOthers === ''
      ? ''
      : `{{ if eq $i 0 }}${beforeSystem === beforeOthers ? text(beforeOthers) : either}{{ end }}`
  const pieceTemplate = (piece: [string, string]) => `${text(piece[0])}{{ .Content }}${text(piece[1])}`
  const between = user[1] && `{{ else }}${text(user[1])}`
  const isLast = '{{ if eq (len (slice $.Messages $i)) 1 }}'
  const userTemplate = `${text(user[0])}{{ .Content }}${isLast}${text(prompt)}${between}{{ end }}`
  return (
    `{{ range $i, $_ := .Messages }}${first}{{ if eq .Role "system" }}${pieceTemplate(system)}` +
    `{{ else if eq .Role "user" }}${userTemplate}` +
    `{{ else if eq .Role "assistant" }}${pieceTemplate(assistant)}{{ end }}{{ end }}`
  )
}
