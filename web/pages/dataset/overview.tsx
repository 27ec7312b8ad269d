import { CircleCheck, TriangleAlert } from 'lucide-react'
import type { Dataset, Validation } from '../../../sdk/index.ts'
import { classes } from '../../lib/classes.ts'
import { formatCount, formatPercent, formatTime, plural } from '../../lib/format.ts'
import { Histogram } from '../../ui/bars.tsx'
import { Button, CopyButton, TextLink } from '../../ui/button.tsx'
import { Help } from '../../ui/disclosure.tsx'
import { EmptyState, Notice } from '../../ui/feedback.tsx'
import { Card, Facts, Stat } from '../../ui/layout.tsx'
import { type Column, Table } from '../../ui/table.tsx'
import { Bytes, Code, Count } from '../../ui/values.tsx'
import { CutControls } from './cut-controls.tsx'
import type { Cut } from './data.ts'

const kinds = {
  sft: 'Conversations: the model learns the answers',
  dpo: 'Pairs of answers: the model learns which is better',
  kto: 'Rated answers: the model learns from good and bad ones',
}

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
            ? 'Every row can be trained on'
            : total_samples === 0
              ? 'The file could not be read'
              : `${plural(error_count, 'row')} of ${formatCount(total_samples)} cannot be trained on`}
        </p>
        {(error_count > 0 || warning_count > 0) && (
          <TextLink
            to="/datasets/$datasetId"
            params={{ datasetId: id }}
            search={(old) => ({ ...old, tab: 'problems' })}
          >
            {valid ? 'Look at the warnings' : 'See what is wrong, and mend it'}
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
              <Help word="Duplicates">
                Rows that repeat an earlier one word for word. They count double in training, which is seldom meant.
              </Help>
            </span>
          }
          value={<Count value={duplicates} />}
        />
        <Stat
          label={
            <span className="inline-flex items-center gap-1">
              Conflicts
              <Help word="Conflicts">
                Rows that ask what an earlier row asks and answer otherwise. The model learns something between the two.
              </Help>
            </span>
          }
          value={<Count value={conflicts} />}
        />
        <Stat
          label="Tokens a row"
          value={<Count value={validation.avg_tokens_per_sample} />}
          note={tokens && `${formatCount(tokens.longest)} the longest`}
        />
      </dl>
    </Card>
  )
}

function Lengths({ dataset, validation, cut, onCut, counting, error }: OverviewProps) {
  const { tokens, tokens_unknown } = validation
  return (
    <Card
      title="Length of the rows"
      description="In tokens of the model, with what its chat template adds. What is beyond the cut is not read."
    >
      <CutControls cut={cut} inForce={tokens} onChange={onCut} />
      <p role="status" className="mt-3 min-h-5 text-sm text-muted">
        {counting ? 'Counting tokens… Below is the last count.' : ''}
      </p>
      {error ? (
        <Notice tone="bad" title="These could not be counted">
          {error.message}
        </Notice>
      ) : tokens ? (
        <div className={classes('transition-opacity', counting && 'opacity-50')} aria-busy={counting}>
          <Lengthwise dataset={dataset} tokens={tokens} />
        </div>
      ) : (
        <EmptyState compact title="The tokens are not known">
          {tokens_unknown ??
            (validation.valid
              ? 'Choose a model whose weights are on this machine.'
              : 'They are counted once a row can be trained on.')}
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
    header: 'Left out',
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
  return (
    <div className="grid gap-4">
      <div>
        <Histogram title="Rows by length" unit="tokens" bins={bins} cut={max_length + 1} />
        {cut_rows > 0 && (
          <p className="mt-1 flex items-center gap-1.5 text-sm text-muted">
            <span aria-hidden className="size-2.5 rounded-sm bg-series-2" />
            longer than {formatCount(max_length)} tokens: cut
          </p>
        )}
      </div>
      {cut_rows === 0 ? (
        <p>
          No row is cut at {formatCount(max_length)} tokens. Together they have {formatCount(total)}.
        </p>
      ) : (
        <p>
          <strong>
            {plural(cut_rows, 'row')} of {formatCount(counted_rows)} ({formatPercent(cut_rows / counted_rows, 1)})
          </strong>{' '}
          {cut_rows === 1 ? 'is' : 'are'} cut at {formatCount(max_length)} tokens, and{' '}
          {tokens.bounded_rows > 0 && 'at least '}
          {plural(cut_tokens, 'token')} of {formatCount(total)} are left out.{' '}
          {dataset.objectives[0] === 'sft'
            ? 'Conversations lose their end, which is where the answer is.'
            : 'Preferences lose the beginning of their prompt.'}
        </p>
      )}
      {no_learned_rows > 0 && (
        <Notice tone="warn" title={`${plural(no_learned_rows, 'row')} would teach nothing`}>
          Nothing of their answers is left within {formatCount(max_length)} tokens. A job leaves them out. Cut at more
          tokens, or shorten what comes before the answer.
        </Notice>
      )}
      {refused_rows > 0 && (
        <Notice tone="bad" title={`${plural(refused_rows, 'row')} cannot be written for this model`}>
          Its chat template refuses them. The problems list says why, line by line.
        </Notice>
      )}
      {tokens.cut.length > 0 && (
        <div className="-mx-4 -mb-4 border-t border-line">
          <Table
            label="Rows that are cut"
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

function About({ dataset }: { dataset: Dataset }) {
  return (
    <Card title="About">
      <Facts
        facts={[
          ['Rows are', dataset.objectives.map((each) => kinds[each]).join('; ') || 'not known yet'],
          dataset.description !== '' && [
            'Description',
            <span key="description" className="whitespace-pre-wrap">
              {dataset.description}
            </span>,
          ],
          dataset.pictures > 0 && [
            'Pictures',
            `${formatCount(dataset.pictures)}: train a base of the category multimodal`,
          ],
          ['Format', dataset.format],
          ['Size', <Bytes key="size" value={dataset.size_mb * 1e6} />],
          ['Added', formatTime(dataset.created_at)],
          [
            'Id',
            <span key="id" className="inline-flex max-w-full items-center gap-1">
              <Code>{dataset.id}</Code>
              <CopyButton text={dataset.id} label="Copy the id" />
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
        title={`${plural(validation.error_count ?? 0, 'row')} must be mended first`}
        action={
          <Button variant="primary" onClick={onMend}>
            See what is wrong
          </Button>
        }
      >
        Rows are shown as the model reads them once all of them can be read.
      </EmptyState>
    </Card>
  )
}
