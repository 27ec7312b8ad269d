// A row as a conversation.
import { useState } from 'react'
import type { Preview } from '../../../sdk/index.ts'
import { classes } from '../../lib/classes.ts'
import { plural } from '../../lib/format.ts'
import { picturesOf } from '../../lib/pictures.ts'
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

/** Messages of a row; `rejected` is the worse answer of a pair. `pictures` is what is known of theirs, in order. */
export function Conversation({
  messages,
  rejected,
  pictures = [],
}: {
  messages: readonly unknown[]
  rejected?: unknown
  pictures?: Preview['pictures']
}) {
  const counts = messages.map((message) => partsOf(Object(message).content).filter(({ url }) => url).length)
  const before = (index: number) => counts.slice(0, index).reduce((sum, count) => sum + count, 0)
  return (
    <ul className="grid gap-2">
      {messages.map((message, index) => (
        <Bubble
          key={index}
          message={Object(message)}
          pictures={pictures.slice(before(index))}
          mark={rejected !== undefined && index === messages.length - 1 ? 'better' : undefined}
        />
      ))}
      {rejected !== undefined && <Bubble message={Object(rejected)} pictures={[]} mark="worse" />}
    </ul>
  )
}

const tones: Record<string, string> = { assistant: 'bg-accent-soft', system: 'bg-hover', developer: 'bg-hover' }

function Bubble({
  message,
  pictures,
  mark,
}: {
  message: Message
  pictures: Preview['pictures']
  mark?: 'better' | 'worse' | undefined
}) {
  const role = typeof message.role === 'string' ? message.role : 'unknown'
  const isAnswer = role === 'assistant'
  const parts = partsOf(message.content)
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
      {parts.map(({ text, url }, index) =>
        url === undefined ? (
          <LongText key={index} text={text} />
        ) : (
          <Picture key={index} url={url} known={pictures[parts.slice(0, index).filter((part) => part.url).length]} />
        ),
      )}
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
      <p className="wrap-anywhere whitespace-pre-wrap">
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

/** A picture of the row, small until it is clicked. What it is besides is said as soon as it is known. */
function Picture({ url, known }: { url: string; known: Preview['pictures'][number] | undefined }) {
  const [open, setOpen] = useState(false)
  const [size, setSize] = useState<{ width: number; height: number } | undefined>(known)
  return (
    <figure className="my-1.5">
      <button
        type="button"
        aria-label={open ? 'Show the picture smaller' : 'Show the picture larger'}
        aria-expanded={open}
        onClick={() => setOpen(!open)}
        className="block max-w-full cursor-zoom-in rounded-md ring-1 ring-line"
      >
        <img
          src={url}
          alt="of the row"
          decoding="async"
          onLoad={({ currentTarget: { naturalWidth: width, naturalHeight: height } }) => setSize({ width, height })}
          className={classes('w-auto max-w-full rounded-md object-contain', open ? 'max-h-[75dvh]' : 'h-32')}
        />
      </button>
      <figcaption className="mt-0.5 min-h-4 text-xs text-muted">
        {size && `${size.width} × ${size.height} pixels`}
        {known && `, ${plural(known.tokens, 'token')}`}
      </figcaption>
    </figure>
  )
}

interface Part {
  text: string
  /** Set for a picture. */
  url?: string
}

/** Content is a text, or a list of parts: neighbouring texts are one. */
function partsOf(content: unknown): Part[] {
  if (typeof content === 'string') return [{ text: content }]
  if (!Array.isArray(content)) return [{ text: content == null ? '' : JSON.stringify(content) }]
  const parts: Part[] = []
  for (const part of content) {
    const [url] = picturesOf([part])
    const last = parts.at(-1)
    if (url !== undefined) parts.push({ text: '', url })
    else if (last && last.url === undefined) last.text += String(Object(part).text ?? '')
    else parts.push({ text: String(Object(part).text ?? '') })
  }
  return parts
}
