import { Rows3 } from 'lucide-react'
import type { Job, JobRow } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { isOver } from '../../lib/events.ts'
import { formatCount, formatNumber } from '../../lib/format.ts'
import { usePages } from '../../lib/pages.ts'
import { Button, TextLink } from '../../ui/button.tsx'
import { Disclosure, Help } from '../../ui/disclosure.tsx'
import { Badge, EmptyState, Loaded } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { LongText } from '../../ui/long-text.tsx'

/** The rows with the highest loss: where wrong examples are found. */
export function HighestLossRows({ job }: { job: Job }) {
  const done = job.status === 'completed'
  const { query, rows, more } = usePages(
    ['jobs', job.id, 'rows'],
    (options) => tunery.jobs.rows(job.id, { limit: 20 }, options),
    { enabled: done },
  )
  if (!done)
    return (
      <Card>
        <EmptyState
          icon={<Rows3 aria-hidden />}
          title={isOver(job) ? 'Only for completed jobs' : 'Available when the job completes'}
        >
          {isOver(job)
            ? 'This job ended before its rows were scored.'
            : 'The rows with the highest loss are the first place to look for wrong examples.'}
        </EmptyState>
      </Card>
    )
  return (
    <Card
      title={
        <>
          Highest-loss rows{' '}
          <Help word="a high-loss row">
            The model still finds its answer unlikely after training on it: it may be wrong, contradict other rows, or
            be rare. A few wrong rows cost more than a few missing ones.
          </Help>
        </>
      }
      description="Check whether these answers are right."
    >
      <Loaded query={query}>
        {() =>
          !rows || rows.length === 0 ? (
            <EmptyState compact title="No rows recorded">
              This model was not trained on its own rows.
            </EmptyState>
          ) : (
            <>
              <ol className="divide-y divide-line">
                {rows.map((row) => (
                  <Row key={row.row} row={row} dataset={job.dataset_id} />
                ))}
              </ol>
              {more.hasMore && (
                <div className="flex justify-center pt-3">
                  <Button size="sm" busy={more.loading} onClick={more.load}>
                    Load more
                  </Button>
                </div>
              )}
            </>
          )
        }
      </Loaded>
    </Card>
  )
}

/** More is out of sight until the whole row is opened. */
const shownMax = 2000

const textOf = (content: unknown): string =>
  typeof content === 'string' ? content : content === null || content === undefined ? '' : JSON.stringify(content)

interface Message {
  role: string
  text: string
}
function messageOf(value: unknown): Message {
  const { role, content, tool_calls } = (value ?? {}) as Record<string, unknown>
  return {
    role: typeof role === 'string' ? role : 'message',
    text: [textOf(content), tool_calls ? JSON.stringify(tool_calls) : ''].filter(Boolean).join('\n'),
  }
}

function Row({ row, dataset }: { row: JobRow; dataset: string }) {
  const messages = row.messages?.map(messageOf)
  const answer = messages?.at(-1)
  const before = messages?.slice(0, -1) ?? []
  return (
    <li className="grid gap-1.5 py-3">
      <div className="flex flex-wrap items-baseline gap-x-4 gap-y-1 text-sm text-muted">
        <TextLink to="/datasets/$datasetId" params={{ datasetId: dataset }} search={{ tab: 'rows', row: row.row }}>
          Row {formatCount(row.row)}
          {row.line !== null && row.line !== row.row && `, line ${formatCount(row.line)}`}
        </TextLink>
        <span>
          loss <span className="font-medium text-ink">{formatNumber(row.loss, 4)}</span>, before training{' '}
          {formatNumber(row.first_loss, 4)}
        </span>
        <span>{row.tokens === 1 ? '1 trained token' : `${formatCount(row.tokens)} trained tokens`}</span>
      </div>
      {answer === undefined ? (
        <p className="text-muted">The dataset was deleted, so the row can't be shown.</p>
      ) : (
        <>
          {before.length > 0 && <p className="truncate text-muted">{before.at(-1)!.text.slice(0, shownMax)}</p>}
          <p className="line-clamp-3 wrap-anywhere whitespace-pre-wrap">
            {answer.text.trim() ? answer.text.slice(0, shownMax) : 'Empty answer'}
          </p>
          <Disclosure summary={row.rejected ? 'Prompt and both answers' : 'Whole row'} quiet>
            <div className="grid gap-2">
              {before.map((message, index) => (
                <Line key={index} message={message} />
              ))}
              <Line message={answer} label={row.rejected ? 'chosen' : undefined} />
              {row.rejected && <Line message={messageOf(row.rejected)} label="rejected" />}
            </div>
          </Disclosure>
        </>
      )}
    </li>
  )
}

const Line = ({ message, label }: { message: Message; label?: 'chosen' | 'rejected' | undefined }) => (
  <div className="flex items-baseline gap-2">
    <Badge tone={label === 'chosen' ? 'good' : label === 'rejected' ? 'bad' : 'neutral'}>{label ?? message.role}</Badge>
    <div className="min-w-0 flex-1">
      <LongText text={message.text} />
    </div>
  </div>
)
