import { ScrollText } from 'lucide-react'
import { useMemo, useState } from 'react'
import type { JobEvent } from '../../../sdk/index.ts'
import { formatTime } from '../../lib/format.ts'
import { ModelName } from '../../parts/names.tsx'
import { Badge, EmptyState, type Tone } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { type Column, Table } from '../../ui/table.tsx'
import { Switch } from '../../ui/toggles.tsx'

/** Steps and samples have views of their own. */
export const isLogged = ({ type, data }: JobEvent): boolean =>
  type !== 'metrics' && type !== 'sample' && (type !== 'progress' || data?.download !== undefined)

const tones: Partial<Record<JobEvent['type'], Tone>> = { error: 'bad', warning: 'warn', status: 'accent' }
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: 'medium' })
const day = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' })
/** With the day, where it is another one. */
function shortTime(time: string): string {
  const at = new Date(time)
  return (at.toDateString() === new Date().toDateString() ? clock : day).format(at)
}

const columns: readonly Column<JobEvent>[] = [
  {
    id: 'time',
    header: 'Time',
    width: '7rem',
    cell: ({ created_at }) => (
      <time dateTime={created_at} title={formatTime(created_at)} className="text-muted">
        {shortTime(created_at)}
      </time>
    ),
  },
  {
    id: 'type',
    header: 'Kind',
    from: 'sm',
    width: '6rem',
    cell: ({ type }) => <Badge tone={tones[type]}>{type}</Badge>,
  },
  {
    id: 'message',
    header: 'Message',
    cell: ({ message, type, data }) => (
      <div className="max-w-[56rem] wrap-anywhere whitespace-pre-wrap">
        {type === 'error' || type === 'warning' ? <span className="sm:hidden">{type}: </span> : null}
        {message.split(/\b(mdl_\w+)/).map((part, at) => (at % 2 === 1 ? <ModelName key={at} id={part} /> : part))}
        {typeof data?.code === 'string' && <span className="text-muted"> ({data.code})</span>}
      </div>
    ),
  },
]

export function Log({ events }: { events: readonly JobEvent[] }) {
  const [all, setAll] = useState(false)
  const shown = useMemo(() => events.filter((event) => all || isLogged(event)).toReversed(), [events, all])
  return (
    <Card
      title="Log"
      description="Newest first"
      actions={
        <Switch checked={all} onChange={setAll} label={<span className="text-sm">Include steps and samples</span>} />
      }
      flush
    >
      <Table
        label="Log"
        columns={columns}
        rows={shown}
        rowId={({ seq }) => String(seq)}
        rowTone={({ type }) => (type === 'error' ? 'bad' : type === 'warning' ? 'warn' : undefined)}
        maxHeight="min(70vh, 48rem)"
        empty={<EmptyState icon={<ScrollText aria-hidden />} title="No events yet" />}
      />
    </Card>
  )
}
