import { useQuery } from '@tanstack/react-query'
import { CircleCheck, TriangleAlert } from 'lucide-react'
import type { Dataset, Validation } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { classes } from '../../lib/classes.ts'
import { formatCount, formatPercent, formatTime, plural } from '../../lib/format.ts'
import { useMay } from '../../lib/session.ts'
import { Histogram } from '../../ui/bars.tsx'
import { Button, CopyButton, TextLink } from '../../ui/button.tsx'
import { Help } from '../../ui/disclosure.tsx'
import { EmptyState, Notice } from '../../ui/feedback.tsx'
import { Card, Facts, Stat } from '../../ui/layout.tsx'
import { type Column, Table } from '../../ui/table.tsx'
import { Bytes, Code, Count, Message } from '../../ui/values.tsx'
import { CutControls } from './cut-controls.tsx'
import type { Cut } from './data.ts'

const kinds = { sft: 'Conversations', dpo: 'Preference pairs', kto: 'Rated answers', reinforcement: 'Prompts' }

interface OverviewProps {
  dataset: Dataset
  validation: Validation
  cut: Cut
  onCut: (cut: Cut) => void
  /** Another choice of model or length is being counted; what is shown is of the last one. */
  counting: boolean
  /** What that counting failed with. */
  error: Error | null
}

export function Overview(props: OverviewProps) {
  const { dataset, validation } = props
  return (
    <div className="grid gap-5">
      <Verdict validation={validation} id={dataset.id} />
      <div className="grid items-start gap-5 lg:grid-cols-[minmax(0,3fr)_minmax(0,2fr)]">
        <Lengths {...props} />
        <About dataset={dataset} />
      </div>
    </div>
  )
}

function Verdict({ validation, id }: { validation: Validation; id: string }) {
  const { valid, error_count = 0, warning_count = 0, duplicates = 0, conflicts = 0, total_samples, tokens } = validation
  const Icon = valid ? CircleCheck : TriangleAlert
  return (
    <Card>
      <div className="flex flex-wrap items-center gap-x-3 gap-y-2 pt-1.5">
        <Icon aria-hidden className={classes('size-5', valid ? 'text-good' : 'text-bad')} />
        <p className="min-w-0 flex-1 basis-60 text-lg font-semibold">
          {valid
            ? 'All rows are valid'
            : total_samples === 0
              ? 'Could not read the file'
              : `${formatCount(error_count)} of ${plural(total_samples, 'row')} invalid`}
        </p>
        {(error_count > 0 || warning_count > 0) && (
          <TextLink
            to="/datasets/$datasetId"
            params={{ datasetId: id }}
            search={(old) => ({ ...old, tab: 'problems' })}
          >
            {valid ? 'Show warnings' : 'Show and fix problems'}
          </TextLink>
        )}
      </div>
      <dl className="mt-4 grid grid-cols-2 gap-4 sm:grid-cols-3 lg:grid-cols-6">
        <Stat label="Rows" value={<Count value={total_samples} />} />
        <Stat label="Errors" value={<Count value={error_count} />} />
        <Stat label="Warnings" value={<Count value={warning_count} />} />
        <Stat
          label={
            <span className="inline-flex items-center gap-1">
              Duplicates
              <Help word="Duplicates">Rows that repeat an earlier row exactly. They count double in training.</Help>
            </span>
          }
          value={<Count value={duplicates} />}
        />
        <Stat
          label={
            <span className="inline-flex items-center gap-1">
              Conflicts
              <Help word="Conflicts">
                Rows with the same prompt as an earlier row but a different answer. The model learns something in
                between.
              </Help>
            </span>
          }
          value={<Count value={conflicts} />}
        />
        <Stat
          label="Tokens per row"
          value={<Count value={validation.avg_tokens_per_sample} />}
          note={tokens && `longest: ${formatCount(tokens.longest)}`}
        />
      </dl>
    </Card>
  )
}

function Lengths({ dataset, validation, cut, onCut, counting, error }: OverviewProps) {
  const { tokens, tokens_unknown } = validation
  return (
    <Card title="Row lengths" description="In tokens, including the chat template. Longer rows are truncated.">
      <CutControls cut={cut} inForce={tokens} onChange={onCut} />
      <p role="status" className="mt-3 min-h-5 text-sm text-muted">
        {counting ? 'Counting tokens…' : ''}
      </p>
      {error ? (
        <Notice tone="bad" title="Could not count tokens">
          <Message text={error.message} />
        </Notice>
      ) : tokens ? (
        <div className={classes('transition-opacity', counting && 'opacity-50')} aria-busy={counting}>
          <Lengthwise dataset={dataset} tokens={tokens} />
        </div>
      ) : (
        <EmptyState compact title="Token counts not available">
          {tokens_unknown ??
            (validation.valid ? 'Choose a downloaded model.' : 'Tokens are counted once rows are valid.')}
        </EmptyState>
      )}
    </Card>
  )
}

type Tokens = NonNullable<Validation['tokens']>

const cutColumns = (id: string): Column<Tokens['cut'][number]>[] => [
  {
    id: 'row',
    header: 'Row',
    cell: (each) => (
      <TextLink
        to="/datasets/$datasetId"
        params={{ datasetId: id }}
        search={(old) => ({ ...old, tab: 'tokens', row: each.row })}
      >
        {formatCount(each.row)}
      </TextLink>
    ),
  },
  { id: 'line', header: 'Line', cell: (each) => formatCount(each.line), from: 'sm' },
  {
    id: 'tokens',
    header: 'Tokens',
    align: 'right',
    value: (each) => each.tokens,
    cell: (each) => `${each.at_least ? '≥ ' : ''}${formatCount(each.tokens)}`,
  },
  {
    id: 'cut',
    header: 'Dropped',
    align: 'right',
    value: (each) => each.cut_tokens,
    cell: (each) => `${each.at_least ? '≥ ' : ''}${formatCount(each.cut_tokens)}`,
  },
]

/** Bars of the histogram; the one that has the cut in it is divided there. */
function binsOf({ histogram, longest, max_length, cut_rows }: Tokens) {
  const bins: { from: number; to: number; count: number }[] = []
  for (const { up_to, rows } of histogram) {
    const from = (bins.at(-1)?.to ?? 0) + 1
    bins.push({ from, to: up_to ?? Math.max(from, longest), count: rows })
  }
  const at = bins.findIndex(({ from, to }) => from <= max_length && max_length < to)
  const bin = bins[at]
  if (!bin) return bins
  const beyond = bins.slice(at + 1).reduce((sum, { count }) => sum + count, 0)
  const cut = Math.min(bin.count, Math.max(0, cut_rows - beyond))
  return bins.toSpliced(
    at,
    1,
    { from: bin.from, to: max_length, count: bin.count - cut },
    { from: max_length + 1, to: bin.to, count: cut },
  )
}

function Lengthwise({ dataset, tokens }: { dataset: Dataset; tokens: Tokens }) {
  const { max_length, cut_rows, cut_tokens, counted_rows, total, no_learned_rows, refused_rows } = tokens
  const bins = binsOf(tokens)
  const filled = bins.filter(({ count }) => count > 0)
  return (
    <div className="grid gap-4">
      <div>
        {filled.length === 1 ? (
          <p className="text-muted">
            All rows have {formatCount(filled[0]!.from)} to {formatCount(filled[0]!.to)} tokens.
          </p>
        ) : (
          <Histogram title="Rows by length" unit="tokens" bins={bins} cut={max_length + 1} />
        )}
        {cut_rows > 0 && (
          <p className="mt-1 flex items-center gap-1.5 text-sm text-muted">
            <span aria-hidden className="size-2.5 rounded-sm bg-series-2" />
            longer than {formatCount(max_length)} tokens: truncated
          </p>
        )}
      </div>
      {cut_rows === 0 ? (
        <p>
          No rows are truncated at {formatCount(max_length)} tokens. Total: {formatCount(total)} tokens.
        </p>
      ) : (
        <p>
          <strong>
            {plural(cut_rows, 'row')} of {formatCount(counted_rows)} ({formatPercent(cut_rows / counted_rows, 1)})
          </strong>{' '}
          {cut_rows === 1 ? 'is' : 'are'} truncated at {formatCount(max_length)} tokens:{' '}
          {tokens.bounded_rows > 0 && 'at least '}
          {plural(cut_tokens, 'token')} of {formatCount(total)} are dropped.{' '}
          {dataset.objectives[0] === 'sft'
            ? 'Conversations lose their end, which is where the answer is.'
            : 'Preferences lose the beginning of their prompt.'}
        </p>
      )}
      {no_learned_rows > 0 && (
        <Notice tone="warn" title={`${plural(no_learned_rows, 'row')} would be left without an answer`}>
          Their answers start beyond {formatCount(max_length)} tokens, so jobs skip them. Increase the limit or shorten
          the prompts.
        </Notice>
      )}
      {refused_rows > 0 && (
        <Notice tone="bad" title={`${plural(refused_rows, 'row')} not supported by this model`}>
          Its chat template rejects them. See Problems for details.
        </Notice>
      )}
      {tokens.cut.length > 0 && (
        <div className="-mx-4 -mb-4 border-t border-line">
          <Table
            label="Truncated rows"
            columns={cutColumns(dataset.id)}
            rows={tokens.cut}
            rowId={(each) => String(each.row)}
            maxHeight="16rem"
          />
        </div>
      )}
    </div>
  )
}

const shownJobs = 8

/** The jobs that were trained on a dataset, among the newest hundred. */
function useJobsOn(id: string) {
  const { data } = useQuery({
    queryKey: ['jobs', 'list', { limit: 100 }],
    queryFn: ({ signal }) => tunery.jobs.list({ limit: 100 }, { signal }),
    enabled: useMay('tuning:read'),
  })
  return data?.items.filter(({ dataset_id }) => dataset_id === id) ?? []
}

function About({ dataset }: { dataset: Dataset }) {
  const jobs = useJobsOn(dataset.id)
  return (
    <Card title="About">
      <Facts
        facts={[
          ['Type', dataset.objectives.map((each) => kinds[each]).join('; ') || 'Not known yet'],
          dataset.description !== '' && [
            'Description',
            <span key="description" className="whitespace-pre-wrap">
              {dataset.description}
            </span>,
          ],
          dataset.pictures > 0 && [
            'Pictures',
            `${formatCount(dataset.pictures)}: train a base that learns from pictures`,
          ],
          ['Format', dataset.format],
          dataset.columns !== null && [
            'Columns',
            <span key="columns" className="wrap-anywhere">
              {Object.entries(dataset.columns)
                .map(([role, column]) => `${column} as ${role}`)
                .join(', ')}
            </span>,
          ],
          ['Size', <Bytes key="size" value={dataset.size_mb * 1e6} />],
          ['Added', formatTime(dataset.created_at)],
          [
            'Used by',
            jobs.length > 0 ? (
              <span key="jobs" className="flex flex-wrap gap-x-3">
                {jobs.slice(0, shownJobs).map(({ id, name }) => (
                  <TextLink key={id} to="/jobs/$jobId" params={{ jobId: id }}>
                    {name}
                  </TextLink>
                ))}
                {jobs.length > shownJobs && <span className="text-muted">+{jobs.length - shownJobs} more</span>}
              </span>
            ) : (
              'No jobs'
            ),
          ],
          [
            'ID',
            <span key="id" className="inline-flex max-w-full items-center gap-1">
              <Code>{dataset.id}</Code>
              <CopyButton text={dataset.id} label="Copy ID" />
            </span>,
          ],
          [
            <span key="name" className="inline-flex items-center gap-1">
              SHA-256
              <Help word="SHA-256">
                A fingerprint of the file as it was uploaded. Jobs and models remember it, so that you can prove what
                they were trained on.
              </Help>
            </span>,
            <span key="sha" className="inline-flex max-w-full items-center gap-1">
              <span className="truncate font-mono text-sm">{dataset.sha256.slice(0, 16)}…</span>
              <CopyButton text={dataset.sha256} label="Copy the SHA-256" />
            </span>,
          ],
        ]}
      />
    </Card>
  )
}

/** In place of what only valid rows have. */
export function MendFirst({ validation, onMend }: { validation: Validation; onMend: () => void }) {
  return (
    <Card>
      <EmptyState
        icon={<TriangleAlert />}
        title={`${plural(validation.error_count ?? 0, 'row')} to fix first`}
        action={
          <Button variant="primary" onClick={onMend}>
            Show problems
          </Button>
        }
      >
        Rows and tokens are shown once all rows are valid.
      </EmptyState>
    </Card>
  )
}
