// Corrects the wrong lines of a dataset here, and uploads the whole as a new one: a dataset itself never changes, as
// jobs and models remember what they were made from.
import { useMutation, useQueryClient } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { Download } from 'lucide-react'
import { useMemo, useState } from 'react'
import type { Dataset } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatCount, plural } from '../../lib/format.ts'
import { Button, ExternalLink } from '../../ui/button.tsx'
import { FileDrop } from '../../ui/disclosure.tsx'
import { Badge, ErrorState, FormError, Notice, Progress, SkeletonLines } from '../../ui/feedback.tsx'
import { Field, Form, Input, Textarea } from '../../ui/field.tsx'
import { Card } from '../../ui/layout.tsx'
import { toast } from '../../ui/toast.tsx'
import { Checkbox } from '../../ui/toggles.tsx'
import { type Issue, slow_ms, useText } from './data.ts'
import { hints } from './hints.ts'

/** Larger files are corrected where they are from. */
const mendable_mb = 8
const retries = 8

/** The check's words, which continue after the number of the line, as their own sentence. */
export const sentence = (message: string): string => message.replace(/^[a-z]/, (letter) => letter.toUpperCase())

export const canMend = ({ format, size_mb }: Dataset) => format === 'jsonl' && size_mb <= mendable_mb

/** By line: its new text, or null where it is left out. */
type Changes = Record<number, string | null>

/** What was corrected stays through a refresh, for as long as the tab. */
function useDraft(id: string): [Changes, (changes: Changes) => void, () => void] {
  const key = `tunery.mend.${id}`
  const [changes, setChanges] = useState<Changes>(() => {
    try {
      return JSON.parse(sessionStorage.getItem(key) ?? '{}')
    } catch {
      return {}
    }
  })
  const change = (next: Changes) => {
    setChanges(next)
    try {
      sessionStorage.setItem(key, JSON.stringify(next))
    } catch {
      // Too much to keep: it then lasts as long as the page.
    }
  }
  return [changes, change, () => sessionStorage.removeItem(key)]
}

function useReplace(dataset: Dataset) {
  const client = useQueryClient()
  const navigate = useNavigate()
  const [share, setShare] = useState<number | null>(null)
  const upload = useMutation({
    mutationFn: ({ file, name }: { file: File; name: string }) =>
      tunery.datasets.upload(
        file,
        { name, ...(dataset.description && { description: dataset.description }) },
        {
          maxRetries: retries,
          timeout_ms: slow_ms,
          onProgress: ({ sent_bytes, total_bytes, state }) => setShare(state ? sent_bytes / total_bytes : null),
        },
      ),
    onSuccess: async (made) => {
      await client.invalidateQueries({ queryKey: ['datasets', 'list'] })
      toast.good('Uploaded', `“${made.name}” is a new dataset; the old one stays until you delete it.`)
      await navigate({ to: '/datasets/$datasetId', params: { datasetId: made.id }, search: {} })
    },
  })
  return { upload, share }
}

const correctedName = (name: string) => `${name.replace(/ \(corrected( \d+)?\)$/, '').slice(0, 185)} (corrected)`

export function Mend({
  dataset,
  issues,
  duplicates,
  unlisted,
  show,
}: {
  dataset: Dataset
  issues: readonly Issue[]
  duplicates: readonly number[]
  /** Errors beyond those that are listed. */
  unlisted: number
  /** Wrong lines to correct with all else, or the duplicates alone. */
  show: 'errors' | 'repeats'
}) {
  const text = useText(dataset, true)
  const lines = useMemo(() => text.data?.split('\n'), [text.data])
  const [changes, change, forget] = useDraft(dataset.id)
  const [name, setName] = useState(() => correctedName(dataset.name))
  const { upload, share } = useReplace(dataset)
  const wrong = [...new Map(issues.map((issue) => [issue.line, issue])).values()]
  const repeated = duplicates.filter((line) => !wrong.some((issue) => issue.line === line))
  const leavesRepeats = repeated.length > 0 && repeated.every((line) => changes[line] === null)
  const untouched = wrong.filter(({ line }) => changes[line] === undefined || changes[line] === lines?.[line - 1])
  const set = (pairs: [number, string | null | undefined][]) => {
    const next = { ...changes }
    for (const [line, value] of pairs) {
      if (value === undefined) delete next[line]
      else next[line] = value
    }
    change(next)
  }

  function send() {
    if (!lines) return
    const corrected = lines.flatMap((line, index) => {
      const changed = changes[index + 1]
      // A row is a line: breaks that were typed between its parts are only space.
      return changed === null ? [] : [changed === undefined ? line : changed.replaceAll(/(?<!\s)\s*\n\s*/g, ' ')]
    })
    const file = new File([corrected.join('\n')], `${dataset.id}.jsonl`)
    upload.mutate({ file, name: name.trim() || correctedName(dataset.name) }, { onSuccess: forget })
  }

  return (
    <div>
      {text.isError ? (
        <ErrorState error={text.error} retry={() => void text.refetch()} />
      ) : !lines ? (
        <SkeletonLines lines={4} />
      ) : (
        <Form onSubmit={send}>
          {show === 'errors' && untouched.length > 1 && (
            <div>
              <Button size="sm" onClick={() => set(untouched.map(({ line }) => [line, null]))}>
                Leave out all {formatCount(untouched.length)} that are still wrong
              </Button>
            </div>
          )}
          {(show === 'errors' ? wrong : []).map((issue) => (
            <WrongLine
              key={issue.line}
              issue={issue}
              original={lines[issue.line - 1] ?? ''}
              value={changes[issue.line]}
              onChange={(value) => set([[issue.line, value]])}
            />
          ))}
          {repeated.length > 0 && (
            <Checkbox
              checked={leavesRepeats}
              onChange={(on) => set(repeated.map((line) => [line, on ? null : undefined]))}
              label={`Leave out ${plural(repeated.length, 'duplicate')}`}
              help="Keeps the first of rows that are the same word for word."
            />
          )}
          {unlisted > 0 && (
            <Notice tone="warn" title={`${plural(unlisted, 'more row')} are wrong`}>
              Only the first hundred can be corrected here. The next check lists the following ones.
            </Notice>
          )}
          <div className="flex flex-wrap items-end gap-3 border-t border-line pt-4">
            <Field label="Name of the corrected dataset" className="min-w-56 flex-1">
              <Input value={name} maxLength={200} onChange={({ target }) => setName(target.value)} />
            </Field>
            <Button variant="primary" type="submit" busy={upload.isPending}>
              Upload the corrected rows
            </Button>
          </div>
          <p className="text-sm text-muted" role="status">
            {untouched.length > 0 && wrong.length > 0
              ? `${plural(untouched.length, 'line')} not corrected yet; the check will find ` +
                `${untouched.length === 1 ? 'it' : 'them'} again.`
              : ''}
          </p>
          {upload.isPending && <Progress label="Upload" value={share} />}
          <FormError error={upload.error} />
        </Form>
      )}
    </div>
  )
}

function WrongLine({
  issue,
  original,
  value,
  onChange,
}: {
  issue: Issue
  original: string
  value: string | null | undefined
  onChange: (value: string | null | undefined) => void
}) {
  const left = value === null
  const text = value ?? original
  const problem = left ? undefined : jsonProblem(text)
  const same = value === undefined || value === original
  return (
    <div className="grid gap-1.5">
      <div className={left ? 'opacity-60' : undefined}>
        <Field
          label={
            <span className="inline-flex flex-wrap items-baseline gap-x-2">
              Line {formatCount(issue.line)}
              {same && !left && <Badge tone="bad">{issue.code.replaceAll('_', ' ')}</Badge>}
            </span>
          }
          error={left ? undefined : same ? sentence(issue.message) : problem}
          help={
            left
              ? 'Left out.'
              : same
                ? hints[issue.code]
                : !problem && 'Good JSON now. Whether it is a good row is checked after the upload.'
          }
        >
          <Textarea
            mono
            rows={2}
            maxRows={8}
            value={text}
            disabled={left}
            spellCheck={false}
            onChange={({ target }) => onChange(target.value)}
          />
        </Field>
      </div>
      <div className="flex flex-wrap items-center gap-4">
        <Checkbox
          checked={left}
          onChange={(on) => onChange(on ? null : undefined)}
          label={
            <>
              Leave this row out<span className="sr-only">, line {issue.line}</span>
            </>
          }
        />
        {!same && !left && (
          <Button size="sm" variant="quiet" onClick={() => onChange(undefined)}>
            Undo
          </Button>
        )}
      </div>
    </div>
  )
}

function jsonProblem(text: string): string | undefined {
  try {
    const row: unknown = JSON.parse(text.replaceAll(/(?<!\s)\s*\n\s*/g, ' '))
    return typeof row === 'object' && row !== null && !Array.isArray(row) ? undefined : 'A row is an object: {…}.'
  } catch (error) {
    return `Not JSON yet: ${(error as Error).message}`
  }
}

/** For files that are not corrected here: take the file, correct it, bring it again. */
export function AnotherFile({ dataset }: { dataset: Dataset }) {
  const { upload, share } = useReplace(dataset)
  return (
    <Card
      title="Correct and upload again"
      description={
        'A dataset never changes: jobs and models remember what they were made from. The corrected file becomes ' +
        'a new one.'
      }
    >
      <ol className="mb-4 grid list-decimal gap-1 pl-5 text-muted">
        <li>
          <ExternalLink href={contentOf(dataset)} download>
            <Download aria-hidden className="mr-1 inline size-4 align-text-bottom" />
            Download the file
          </ExternalLink>{' '}
          as it was uploaded, or take your own.
        </li>
        <li>Correct the lines that are listed above.</li>
        <li>Drop it here.</li>
      </ol>
      <FileDrop
        title="The corrected file"
        busy={upload.isPending}
        onFile={(file) => upload.mutate({ file, name: correctedName(dataset.name) })}
      />
      {upload.isPending && <Progress className="mt-3" label="Upload" value={share} />}
      {upload.isError && (
        <div className="mt-3">
          <FormError error={upload.error} />
        </div>
      )}
    </Card>
  )
}

/** The uploaded file; the session's cookie goes with the link. */
export const contentOf = ({ id }: Pick<Dataset, 'id'>) => `/v1/files/${encodeURIComponent(id)}/content`
