// Values as elements: what format.ts makes of them, with the exact value for a closer look.
import { useSyncExternalStore } from 'react'
import {
  formatBytes,
  formatCompact,
  formatCount,
  formatMoney,
  formatRelative,
  formatTime,
  none,
} from '../lib/format.ts'

let now = Date.now()
let timer: ReturnType<typeof setInterval> | undefined
const listeners = new Set<() => void>()
/** One clock for all times of a page. */
function subscribe(listener: () => void): () => void {
  listeners.add(listener)
  timer ??= setInterval(() => {
    now = Date.now()
    for (const listener of listeners) listener()
  }, 15_000)
  return () => {
    listeners.delete(listener)
    if (listeners.size === 0) {
      clearInterval(timer)
      timer = undefined
    }
  }
}

/** `3 minutes ago`, kept up to date; the exact time as its title. */
export function RelativeTime({ time }: { time: string | null | undefined }) {
  const at = useSyncExternalStore(subscribe, () => now)
  if (!time) return <span className="text-muted">{none}</span>
  return (
    <time dateTime={time} title={formatTime(time)} className="whitespace-nowrap">
      {formatRelative(time, Math.max(at, Date.now()))}
    </time>
  )
}

export const Bytes = ({ value }: { value: number | null | undefined }) => (
  <span className="whitespace-nowrap" title={value == null ? undefined : `${formatCount(value)} bytes`}>
    {formatBytes(value)}
  </span>
)
/** `compact`: 12.3K with the whole number as its title. */
export const Count = ({ value, compact }: { value: number | null | undefined; compact?: boolean }) => (
  <span className="whitespace-nowrap" title={compact && value != null ? formatCount(value) : undefined}>
    {compact ? formatCompact(value) : formatCount(value)}
  </span>
)
export const Money = ({ value, currency }: { value: number | null | undefined; currency: string }) => (
  <span className="whitespace-nowrap">{formatMoney(value, currency)}</span>
)
/** An id or another word of a machine: short to read, whole to copy. */
export const Code = ({ children }: { children: string }) => (
  <code className="rounded-sm bg-hover px-1 py-px font-mono text-[0.92em] wrap-anywhere">{children}</code>
)

/** A message of the API, with what it writes between backticks as code. */
export const Message = ({ text }: { text: string }) =>
  text.split(/`([^`]+)`/).map((part, index) => (index % 2 === 1 ? <Code key={index}>{part}</Code> : part))
