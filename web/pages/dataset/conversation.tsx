// A row as a conversation.
import { useState } from 'react'
import { classes } from '../../lib/classes.ts'
import { plural } from '../../lib/format.ts'
import { Button } from '../../ui/button.tsx'
import { Badge } from '../../ui/feedback.tsx'

interface Message {
  role?: unknown
  content?: unknown
  weight?: unknown
  tool_calls?: unknown
  name?: unknown
}

/** Longer texts are folded: a list of rows stays one to read. */
const folded_characters = 900

/** Messages of a row; `rejected` is the worse answer of a pair. */
export function Conversation({ messages, rejected }: { messages: readonly unknown[]; rejected?: unknown }) {
  return (
    <ul className="grid gap-2">
      {messages.map((message, index) => (
        <Bubble
          key={index}
          message={Object(message)}
          mark={rejected !== undefined && index === messages.length - 1 ? 'better' : undefined}
        />
      ))}
      {rejected !== undefined && <Bubble message={Object(rejected)} mark="worse" />}
    </ul>
  )
}

const tones: Record<string, string> = {
  assistant: 'bg-accent-soft',
  system: 'bg-hover',
  developer: 'bg-hover',
}

function Bubble({ message, mark }: { message: Message; mark?: 'better' | 'worse' }) {
  const role = typeof message.role === 'string' ? message.role : 'unknown'
  const isAnswer = role === 'assistant'
  const calls = Array.isArray(message.tool_calls) ? message.tool_calls : []
  return (
    <li
      className={classes('rounded-lg px-3 py-2', tones[role] ?? 'ring-1 ring-line ring-inset', isAnswer && 'sm:ml-8')}
    >
      <p className="mb-0.5 flex flex-wrap items-center gap-2 text-xs font-medium text-muted">
        {role}
        {typeof message.name === 'string' && <span className="font-mono">{message.name}</span>}
        {mark === 'better' && <Badge tone="good">better answer</Badge>}
        {mark === 'worse' && <Badge tone="bad">worse answer</Badge>}
        {message.weight === 0 && <Badge>read, not learned</Badge>}
      </p>
      <LongText text={textOf(message.content)} />
      {calls.map((call, index) => (
        <p key={index} className="mt-1 font-mono text-sm break-all">
          <span className="text-muted">calls </span>
          {String(Object(call).function?.name ?? '?')}({String(Object(call).function?.arguments ?? '')})
        </p>
      ))}
    </li>
  )
}

function LongText({ text }: { text: string }) {
  const [open, setOpen] = useState(false)
  if (text === '') return null
  const long = text.length > folded_characters
  return (
    <>
      <p className="break-words whitespace-pre-wrap">
        {long && !open ? `${[...text.slice(0, folded_characters)].join('')}…` : text}
      </p>
      {long && (
        <Button size="sm" variant="quiet" className="mt-1 -ml-2.5" aria-expanded={open} onClick={() => setOpen(!open)}>
          {open ? 'Show less' : `Show all ${plural(text.length, 'character')}`}
        </Button>
      )}
    </>
  )
}

/** Content is a text, or a list of parts of text. */
function textOf(content: unknown): string {
  if (typeof content === 'string') return content
  if (Array.isArray(content)) return content.map((part) => String(Object(part).text ?? '')).join('')
  return content == null ? '' : JSON.stringify(content)
}
