import { ChevronLeft, ChevronRight } from 'lucide-react'
import { useRef, useState } from 'react'
import type { Dataset, Preview } from '../../../sdk/index.ts'
import { classes } from '../../lib/classes.ts'
import { formatCount, formatPercent, plural } from '../../lib/format.ts'
import { Button, IconButton } from '../../ui/button.tsx'
import { Disclosure, Help } from '../../ui/disclosure.tsx'
import { Loaded, Notice } from '../../ui/feedback.tsx'
import { NumberInput } from '../../ui/field.tsx'
import { Card } from '../../ui/layout.tsx'
import { Conversation } from './conversation.tsx'
import { CutControls } from './cut-controls.tsx'
import { type Cut, useBases, usePreview } from './data.ts'

/** The exact tokens of one row, as a job would read them. */
export function Tokens({
  dataset,
  row = 1,
  onRow,
  cut,
  onCut,
  inForce,
}: {
  dataset: Dataset
  row?: number | undefined
  onRow: (row: number) => void
  cut: Cut
  onCut: (cut: Cut) => void
  /** What rows are cut at where nothing was chosen. */
  inForce?: { model_id: string; max_length: number } | undefined
}) {
  const number = Math.min(Math.max(1, row), dataset.rows)
  // Before the bases are known the service's default stands for them, which may not be here.
  const bases = useBases()
  const query = usePreview(dataset, number, cut, dataset.rows > 0 && !bases.isPending)
  return (
    <Card
      title="What the trainer reads"
      description="Every token of the row with the marks of the chat template. The loss counts the learned ones alone."
      actions={
        <div className="flex items-center gap-1">
          <IconButton
            label="Previous row"
            icon={<ChevronLeft aria-hidden />}
            disabled={number <= 1}
            onClick={() => onRow(number - 1)}
          />
          <div className="w-32">
            <NumberInput
              aria-label="Row"
              value={number}
              min={1}
              max={dataset.rows}
              onChange={(next) => next && onRow(next)}
            />
          </div>
          <span className="text-sm text-muted">of {formatCount(dataset.rows)}</span>
          <IconButton
            label="Next row"
            icon={<ChevronRight aria-hidden />}
            disabled={number >= dataset.rows}
            onClick={() => onRow(number + 1)}
          />
        </div>
      }
    >
      <div className="grid grid-cols-1 gap-4">
        <CutControls cut={cut} inForce={inForce} onChange={onCut} />
        <p role="status" className="sr-only">
          {query.isFetching ? 'Loading the tokens' : ''}
        </p>
        <Loaded query={query}>
          {(preview) => (
            <div
              className={classes('grid grid-cols-1 gap-4 transition-opacity', query.isPlaceholderData && 'opacity-50')}
              aria-busy={query.isFetching}
            >
              <Sequences preview={preview} />
              <Disclosure quiet summary="The row as a conversation" open={preview.pictures.length > 0}>
                <Conversation messages={preview.messages} pictures={preview.pictures} />
              </Disclosure>
            </div>
          )}
        </Loaded>
      </div>
    </Card>
  )
}

function Sequences({ preview: { sequences } }: { preview: Preview }) {
  const all = sequences.flatMap(({ tokens }) => tokens)
  const learned = all.filter(({ trained }) => trained).length
  const left = sequences.reduce((sum, { cut_tokens }) => sum + cut_tokens, 0)
  return (
    <>
      {learned === 0 && (
        <Notice tone="warn" title="Nothing of this row is learned">
          {left > 0
            ? 'What the model should learn lies beyond the cut. Cut at more tokens, or shorten what comes ' +
              'before the answer. A job leaves this row out.'
            : 'It has no answer that counts. A job leaves it out.'}
        </Notice>
      )}
      <p className="flex flex-wrap items-center gap-x-4 gap-y-1">
        <span>{plural(all.length, 'token')}</span>
        <span>
          <mark className={learnedClass}>{formatCount(learned)} learned</mark>
          <span className="text-muted"> {all.length > 0 && formatPercent(learned / all.length, 1)}</span>
        </span>
        {left > 0 && <span className="text-warn">{formatCount(left)} beyond the cut</span>}
        {sequences.length > 1 && (
          <span className="text-muted">
            {formatCount(sequences.length)} sequences{' '}
            <Help word="Sequences">
              The chat template of this model writes earlier turns differently once a later one follows, so each answer
              is learned in its own sequence.
            </Help>
          </span>
        )}
      </p>
      {sequences.map((sequence, index) => (
        <Sequence key={index} sequence={sequence} name={sequences.length > 1 ? `Sequence ${index + 1}` : 'Tokens'} />
      ))}
    </>
  )
}

const learnedClass = 'rounded-sm bg-good-soft text-ink underline decoration-good decoration-2 underline-offset-3'
/** More are rendered when asked for: a page of tens of thousands of elements is slow. */
const shownAtFirst = 3000
/** Learned tokens behind this many others are likely out of sight. */
const farAway = 250

function Sequence({
  sequence: { tokens, cut_tokens },
  name,
}: {
  sequence: Preview['sequences'][number]
  name: string
}) {
  const [all, setAll] = useState(false)
  const shown = all ? tokens : tokens.slice(0, shownAtFirst)
  const box = useRef<HTMLElement>(null)
  const jump = () => {
    const mark = box.current?.querySelector('mark')
    if (mark) box.current!.scrollTo({ top: mark.offsetTop - box.current!.offsetTop - 60 })
    box.current?.focus()
  }
  return (
    <div>
      <section
        ref={box}
        aria-label={name}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
        tabIndex={0}
        className={
          'max-h-[60dvh] overflow-y-auto rounded-lg bg-sunken p-3 font-mono text-sm leading-7 wrap-anywhere ' +
          'whitespace-pre-wrap ring-1 ring-line'
        }
      >
        {runsOf(shown).map(({ trained, start, run }) => {
          const words = alike(run).map(({ token, count, index }) => (
            <span
              key={start + index}
              title={`token ${token.id}${trained ? ', learned' : ''}`}
              className="border-r border-edge/50 hover:bg-hover"
            >
              <Visible text={token.text} />
              {count > 1 && <span className="text-faint">×{formatCount(count)}</span>}
            </span>
          ))
          return trained ? (
            <mark key={start} className={learnedClass}>
              <span className="sr-only">[learned: </span>
              {words}
              <span className="sr-only">]</span>
            </mark>
          ) : (
            <span key={start} className="text-muted">
              {words}
            </span>
          )
        })}
        {cut_tokens > 0 && shown.length === tokens.length && (
          <span className="ml-1 rounded-sm bg-warn-soft px-1 text-warn">cut: {plural(cut_tokens, 'token')} more</span>
        )}
      </section>
      <div className="mt-2 flex flex-wrap gap-2 empty:hidden">
        {shown.length > farAway && shown.findIndex(({ trained }) => trained) > farAway && (
          <Button size="sm" onClick={jump}>
            Go to the learned tokens
          </Button>
        )}
        {shown.length < tokens.length && (
          <Button size="sm" onClick={() => setAll(true)}>
            Show all {formatCount(tokens.length)} tokens
          </Button>
        )}
      </div>
    </div>
  )
}

type Token = Preview['sequences'][number]['tokens'][number]

/** Neighbours that are all learned, or all not. */
function runsOf(tokens: readonly Token[]) {
  const runs: { trained: boolean; start: number; run: Token[] }[] = []
  for (const [index, token] of tokens.entries()) {
    const last = runs.at(-1)
    if (last?.trained === token.trained) last.run.push(token)
    else runs.push({ trained: token.trained, start: index, run: [token] })
  }
  return runs
}

/** Tokens that repeat more often are shown once, with their number: those of a picture are hundreds of the same. */
const repeatedMax = 4

/** The tokens of a run, those that repeat as one. `index`: of the first of them. */
function alike(run: readonly Token[]) {
  const matches: { token: Token; count: number; index: number }[] = []
  for (let from = 0; from < run.length; ) {
    const token = run[from]!
    let to = from
    while (run[to]?.id === token.id) to++
    if (to - from > repeatedMax) matches.push({ token, count: to - from, index: from })
    else for (let index = from; index < to; index++) matches.push({ token, count: 1, index })
    from = to
  }
  return matches
}

/** A line break is shown as a sign, and still breaks the line. */
const Visible = ({ text }: { text: string }) =>
  text.split(/(\n)/).map((piece, index) =>
    piece === '\n' ? (
      <span key={index}>
        <span aria-hidden className="text-faint">
          ↵
        </span>
        {'\n'}
      </span>
    ) : (
      piece
    ),
  )
