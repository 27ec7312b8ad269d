// What the playground remembers: its columns, their parameters, the conversation and the votes. It survives a refresh.
import { useEffect, useReducer, useState } from 'react'
import type { ReasoningEffort } from '../../../contract/chat.ts'
import type { AnswerWarning } from '../../../contract/inference.ts'
import { randomId } from '../../../sdk/http.ts'
import type { Content } from '../../lib/pictures.ts'

/** Parameters of a request; null leaves one to the service's default. */
export interface Parameters {
  system: string
  temperature: number | null
  top_p: number | null
  max_tokens: number | null
  seed: number | null
  presence_penalty: number | null
  frequency_penalty: number | null
  reasoning_effort: ReasoningEffort | null
  stop: string
  /** JSON of a list of tools, and of a schema of the answer; empty: none. */
  tools: string
  schema: string
}

const defaults: Parameters = {
  system: '',
  temperature: 0,
  top_p: null,
  max_tokens: 512,
  seed: null,
  presence_penalty: null,
  frequency_penalty: null,
  reasoning_effort: null,
  stop: '',
  tools: '',
  schema: '',
}

export interface Column {
  id: string
  /** A base, a tuned model, or a deployment's name. */
  model: string
}

export interface Token {
  text: string
  logprob: number
  top: { text: string; logprob: number }[]
}

/** Each token is a button: of more a page gets slow. */
export const tokensMax = 2000

export interface Answer {
  status: 'streaming' | 'done' | 'stopped' | 'failed'
  text: string
  reasoning?: string
  tool_calls?: { name: string; arguments: string }[]
  /** Not kept over a refresh. Of a longer answer than is shown token by token only the beginning. */
  tokens?: Token[]
  /** The weights that answered, as the engine reports them. */
  weights?: string | undefined
  /** How the request differs from the model's training. */
  warnings?: AnswerWarning[]
  model: string
  first_ms?: number
  total_ms?: number
  prompt_tokens?: number
  completion_tokens?: number
  finish_reason?: string
  error?: string | undefined
}

export interface Turn {
  id: string
  user: string
  /** Data URLs. Not kept over a refresh: a browser has no room for them. */
  pictures?: string[]
  /** How many pictures a refresh has taken. */
  lost?: number
  /** By column. */
  answers: Record<string, Answer>
  /** The column whose answer was voted the better one. */
  better?: string
}

export interface Vote {
  id: string
  prompt: { role: string; content: Content }[]
  chosen: string
  rejected: string
  models: { chosen: string; rejected: string }
}

export interface State {
  columns: Column[]
  parameters: Parameters
  turns: Turn[]
  votes: Vote[]
}

type Action =
  | { type: 'columns'; columns: Column[] }
  | { type: 'parameters'; parameters: Parameters }
  | { type: 'ask'; turn: Turn }
  | { type: 'answer'; turn: string; column: string; answer: Answer }
  | { type: 'cut'; turn: string }
  | { type: 'vote'; turn: string; better: string; votes: Vote[] }
  | { type: 'votes'; votes: Vote[] }
  | { type: 'clear' }

function reduce(state: State, action: Action): State {
  const changed = (id: string, change: (turn: Turn) => Turn) =>
    state.turns.map((turn) => (turn.id === id ? change(turn) : turn))
  switch (action.type) {
    case 'columns':
      return { ...state, columns: action.columns }
    case 'parameters':
      return { ...state, parameters: action.parameters }
    case 'ask':
      return { ...state, turns: [...state.turns, action.turn] }
    case 'answer':
      return {
        ...state,
        turns: changed(action.turn, (turn) => ({
          ...turn,
          answers: { ...turn.answers, [action.column]: action.answer },
        })),
      }
    case 'cut':
      return {
        ...state,
        turns: state.turns.slice(
          0,
          state.turns.findIndex(({ id }) => id === action.turn),
        ),
      }
    case 'vote':
      return {
        ...state,
        turns: changed(action.turn, (turn) => ({ ...turn, better: action.better })),
        votes: [...state.votes, ...action.votes],
      }
    case 'votes':
      return { ...state, votes: action.votes }
    case 'clear':
      return { ...state, turns: [] }
  }
}

/** A browser keeps about 5 MB for a site; longer conversations are lost with a refresh. */
const keptCharacters = 1_000_000
const keptTurns = 40
const keptVotes = 2000

/** By account: who signs in to another one sees nothing of this. */
const keyOf = (account: string) => `tunery.playground.${account}`

const draftKey = 'tunery.playground.question'

/** The question that is being written, kept in this tab. */
export function useQuestion() {
  const [text, setText] = useState(() => sessionStorage.getItem(draftKey) ?? '')
  const change = (next: string) => {
    setText(next)
    try {
      sessionStorage.setItem(draftKey, next)
    } catch {
      // Too much to keep: it lasts until the page is left.
    }
  }
  return [text, change] as const
}

export function usePlayground(account: string, models: string[]) {
  const [state, dispatch] = useReducer(reduce, undefined, (): State => {
    const kept = read(account)
    const columns = models.length > 0 ? models.map((model) => ({ id: randomId(), model })) : kept?.columns
    return {
      columns: columns?.length ? columns : [{ id: randomId(), model: '' }],
      parameters: { ...defaults, ...kept?.parameters },
      // An address that names models begins a conversation with them.
      turns: models.length > 0 ? [] : (kept?.turns ?? []),
      votes: kept?.votes ?? [],
    }
  })
  useEffect(() => {
    const timer = setTimeout(() => write(account, state), 300)
    return () => clearTimeout(timer)
  }, [account, state])
  return [state, dispatch] as const
}

function read(account: string): Partial<State> | undefined {
  try {
    const kept = JSON.parse(localStorage.getItem(keyOf(account)) ?? '') as State
    // An answer that was in progress when the page was left has stopped there.
    for (const turn of kept.turns)
      for (const answer of Object.values(turn.answers)) if (answer.status === 'streaming') answer.status = 'stopped'
    return kept
  } catch {
    return undefined
  }
}

function write(account: string, state: State): void {
  const plain = ({ tokens: _, ...answer }: Answer): Answer => answer
  const turns = state.turns
    .slice(-keptTurns)
    .map(({ pictures = [], ...turn }) => ({
      ...turn,
      ...(pictures.length > 0 && { lost: pictures.length }),
      answers: Object.fromEntries(Object.entries(turn.answers).map(([id, answer]) => [id, plain(answer)])),
    }))
  const characters = turns
    .flatMap(({ answers }) => Object.values(answers))
    .reduce((sum, { text }) => sum + text.length, 0)
  if (characters > keptCharacters) turns.length = 0
  const votes = state.votes.slice(-keptVotes)
  const inText = votes.filter(({ prompt }) => prompt.every(({ content }) => typeof content === 'string'))
  for (const kept of [votes, inText])
    try {
      localStorage.setItem(keyOf(account), JSON.stringify({ ...state, turns, votes: kept }))
      return
    } catch {
      // The browser's room for this site is full: the page continues without those with pictures, or without any.
    }
}
