// What is wrong with rows, each with its line and how to mend it; and warnings, which may be meant.
import { CircleCheck } from 'lucide-react'
import { useState } from 'react'
import type { Dataset, Validation } from '../../../sdk/index.ts'
import { formatCount, plural } from '../../lib/format.ts'
import { useMay } from '../../lib/session.ts'
import { Badge, EmptyState, Notice } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { Segments } from '../../ui/toggles.tsx'
import { hasLines, type Issue, useLines } from './data.ts'
import { hints } from './hints.ts'
import { AnotherFile, canMend, Mend, sentence } from './mend.tsx'

type Kind = 'errors' | 'warnings' | 'repeats'
const repeats = new Set(['duplicate', 'conflicting_answer'])

export function Problems({ dataset, validation }: { dataset: Dataset; validation: Validation }) {
  const errors = validation.issues ?? []
  const warnings = validation.warnings ?? []
  const others = warnings.filter(({ code }) => !repeats.has(code))
  const repeated = warnings.filter(({ code }) => repeats.has(code))
  const repeatCount = (validation.duplicates ?? 0) + (validation.conflicts ?? 0)
  const errorCount = validation.error_count ?? 0
  const [kind, setKind] = useState<Kind>(
    errorCount > 0 ? 'errors' : others.length > 0 || repeatCount === 0 ? 'warnings' : 'repeats',
  )
  const mayMend = useMay('datasets:write')
  const lists = { errors, warnings: others, repeats: repeated }
  const counts = { errors: errorCount, warnings: (validation.warning_count ?? 0) - repeatCount, repeats: repeatCount }
  const names = { errors: 'Errors', warnings: 'Warnings', repeats: 'Duplicates and conflicts' }

  if (errorCount + (validation.warning_count ?? 0) === 0)
    return (
      <Card>
        <EmptyState icon={<CircleCheck />} title="No problems">
          Every row is valid, and no row repeats or contradicts another.
        </EmptyState>
      </Card>
    )
  const mendable = mayMend && canMend(dataset)
  const duplicates = repeated.filter(({ code }) => code === 'duplicate').map(({ line }) => line)
  const mend = mendable && (
    <Mend
      dataset={dataset}
      issues={errors}
      duplicates={duplicates}
      unlisted={counts.errors - errors.length}
      show={kind === 'errors' ? 'errors' : 'repeats'}
    />
  )
  const mendsHere = mend && kind === 'errors' && errors.length > 0
  return (
    <div className="grid gap-5">
      <Card
        title={names[kind]}
        description={descriptions[kind]}
        actions={
          <Segments<Kind>
            label="What to list"
            value={kind}
            onChange={setKind}
            choices={(['errors', 'warnings', 'repeats'] as const).map((value) => ({
              value,
              label: `${value === 'repeats' ? 'Duplicates' : names[value]} ${formatCount(counts[value])}`,
            }))}
          />
        }
        flush
      >
        {mendsHere ? (
          <div className="border-t border-line p-4">{mend}</div>
        ) : (
          <IssueList
            key={kind}
            dataset={dataset}
            issues={lists[kind]}
            tone={kind === 'errors' ? 'bad' : 'warn'}
            unlisted={counts[kind] - lists[kind].length}
            messages={kind === 'errors' && !validation.issues ? validation.errors : undefined}
          />
        )}
        {kind === 'repeats' && duplicates.length > 0 && mend && <div className="border-t border-line p-4">{mend}</div>}
      </Card>
      {!mayMend ? (
        <Notice title="Correcting needs another role">
          Your role lacks the scope datasets:write. Ask an owner of the account, or correct the file where it is from.
        </Notice>
      ) : (
        !mendable && <AnotherFile dataset={dataset} />
      )}
    </div>
  )
}

const descriptions = {
  errors:
    'Fix these before you train. Corrected rows become a new dataset: jobs and models keep the one they were ' +
    'made from.',
  warnings: 'Check these. They do not keep a job from starting.',
  repeats: 'Rows that repeat an earlier row, or its question with another answer.',
}

/** Longer lines are cut here; the file has all of them. */
const shownCharacters = 600

function IssueList({
  dataset,
  issues,
  tone,
  unlisted,
  messages,
}: {
  dataset: Dataset
  issues: readonly Issue[]
  tone: 'bad' | 'warn'
  unlisted: number
  /** Set for a file that cannot be read, which has no lines. */
  messages?: readonly string[] | undefined
}) {
  const wanted = [...new Set(issues.flatMap(({ line, first_line }) => [line, ...(first_line ? [first_line] : [])]))]
  const lines = useLines(
    dataset,
    wanted.sort((a, b) => a - b),
  )
  if (issues.length === 0)
    return messages?.length ? (
      <ul className="grid gap-2 px-4 pb-4">
        {messages.map((message) => (
          <li key={message}>{message}</li>
        ))}
      </ul>
    ) : (
      <EmptyState compact title={unlisted > 0 ? `${formatCount(unlisted)}, none of them among the first` : 'None'}>
        {unlisted > 0 && 'The list has the first hundred warnings of the file, by line.'}
      </EmptyState>
    )
  const numbered = hasLines(dataset) ? 'Line' : 'Row'
  const textOf = (line: number) => lines.data?.get(line)
  return (
    <>
      <ul className="divide-y divide-line border-t border-line">
        {issues.map((issue) => (
          <li key={`${issue.line} ${issue.code}`} className="px-4 py-3">
            <p className="flex flex-wrap items-baseline gap-x-2">
              <span className="font-medium whitespace-nowrap">
                {numbered} {formatCount(issue.line)}
              </span>
              <span className="min-w-0 flex-1 basis-60 wrap-anywhere">{sentence(issue.message)}</span>
              <Badge tone={tone}>{issue.code.replaceAll('_', ' ')}</Badge>
            </p>
            {hints[issue.code] && <p className="mt-0.5 text-sm text-muted">{hints[issue.code]}</p>}
            <LineText text={textOf(issue.line)} name={`${numbered} ${formatCount(issue.line)}`} />
            {issue.code === 'conflicting_answer' && issue.first_line && (
              <LineText
                text={textOf(issue.first_line)}
                name={`${numbered} ${formatCount(issue.first_line)}`}
                labelled
              />
            )}
          </li>
        ))}
      </ul>
      {unlisted > 0 && (
        <p className="border-t border-line px-4 py-3 text-muted">
          And {plural(unlisted, 'more', 'more')}: the first hundred are listed.
        </p>
      )}
      {hasLines(dataset) && lines.isError && (
        <p className="border-t border-line px-4 py-3 text-muted">The lines could not be shown: {lines.error.message}</p>
      )}
    </>
  )
}

function LineText({ text, name, labelled }: { text: string | undefined; name: string; labelled?: boolean }) {
  if (text === undefined) return null
  // Nobody reads a picture as base64.
  const readable = text.replace(/(;base64,)[A-Za-z0-9+/=]{24,}/g, '$1…')
  return (
    <pre
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
      tabIndex={0}
      className={
        'focus-inset mt-2 max-h-28 overflow-auto rounded-md bg-sunken px-2.5 py-1.5 font-mono text-xs ' +
        'wrap-anywhere whitespace-pre-wrap ring-1 ring-line'
      }
    >
      {labelled && <span className="text-muted">{name}: </span>}
      {readable.length > shownCharacters ? `${readable.slice(0, shownCharacters)}…` : readable || '(empty)'}
    </pre>
  )
}
