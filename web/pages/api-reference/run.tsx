// Sends the request of an operation, and shows what comes back while it comes.
import { Play, Square } from 'lucide-react'
import { useEffect, useRef, useState } from 'react'
import type { Operation } from '../../lib/openapi.ts'
import { useSessionQuery } from '../../lib/session.ts'
import { Button } from '../../ui/button.tsx'
import { CodeBlock } from '../../ui/code.tsx'
import { Disclosure } from '../../ui/disclosure.tsx'
import { Badge } from '../../ui/feedback.tsx'
import { Field, Input, Textarea } from '../../ui/field.tsx'
import { ConfirmDialog } from '../../ui/popups.tsx'
import { useKey } from './key.ts'
import { addressOf, type Draft, isForm } from './samples.ts'
import { type Answer, isPlaceholder, riskOf, send } from './send.ts'

export function Run({
  operation,
  draft,
  onChange,
}: {
  operation: Operation
  draft: Draft
  onChange: (draft: Draft) => void
}) {
  const [asking, setAsking] = useState(false)
  const [file, setFile] = useState<File>()
  const [key] = useKey()
  const { run, stop, running, answer, problem } = useRun(operation, draft, key, file)
  const whyNot = useWhyNot(operation, draft, key, file)
  const risk = riskOf(operation)

  return (
    <section className="grid gap-3">
      <h4 className="font-semibold">Run it</h4>
      <Inputs operation={operation} draft={draft} onChange={onChange} onFile={setFile} />
      <div className="flex flex-wrap items-center gap-3">
        {running ? (
          <Button icon={<Square aria-hidden />} onClick={stop}>
            Stop
          </Button>
        ) : (
          <Button
            variant="primary"
            icon={<Play aria-hidden />}
            disabled={whyNot !== undefined}
            onClick={() => (risk ? setAsking(true) : void run())}
          >
            Run
          </Button>
        )}
        <span className="min-w-0 text-sm text-muted">{whyNot ?? (running ? 'Waiting for the answer…' : '')}</span>
      </div>
      <ConfirmDialog
        open={asking}
        onOpenChange={setAsking}
        title={risk === 'deletes' ? 'Run a request that deletes?' : 'Run a request that changes or costs something?'}
        action="Run"
        danger={risk === 'deletes'}
        onConfirm={() => {
          // The dialog closes at once; the answer may take long.
          void run()
        }}
      >
        <p className="mb-2">
          It is a real request to this service, {key ? 'with the pasted key' : 'as you are signed in'}:
        </p>
        <code className="font-mono text-sm break-all text-ink">
          {operation.method} {addressOf(operation, draft)}
        </code>
      </ConfirmDialog>
      <div role="status">
        {problem && <p className="rounded-md bg-bad-soft px-3 py-2 text-sm text-bad">{problem}</p>}
        {answer && <AnswerView answer={answer} />}
      </div>
    </section>
  )
}

/** Sends the request, and holds what has come of its answer. */
function useRun(operation: Operation, draft: Draft, key: string, file: File | undefined) {
  const [answer, setAnswer] = useState<Answer>()
  const [problem, setProblem] = useState<string>()
  const [running, setRunning] = useState(false)
  const current = useRef<AbortController>(undefined)
  useEffect(() => () => current.current?.abort(), [])
  const run = async () => {
    setProblem(undefined)
    setAnswer(undefined)
    const controller = new AbortController()
    current.current = controller
    setRunning(true)
    try {
      await send(operation, draft, { key, file, signal: controller.signal, onAnswer: setAnswer })
    } catch (error) {
      if (!controller.signal.aborted) setProblem((error as Error).message)
    } finally {
      setRunning(false)
    }
  }
  return { run, stop: () => current.current?.abort(), running, answer, problem }
}

/** What is missing before the request can be sent. */
function useWhyNot(operation: Operation, draft: Draft, key: string, file: File | undefined) {
  const session = useSessionQuery()
  const scope = operation['x-scope']
  if (scope !== 'public' && !key && !session.data) return 'Sign in, or set a key at the top of the page.'
  if (scope === 'session' && key) return 'This operation takes no key: forget it at the top of the page.'
  const missing = Object.entries(draft.path).filter(([, value]) => isPlaceholder(value))
  if (missing.length > 0) return `Fill in ${missing.map(([name]) => name).join(', ')}.`
  if (draft.body?.includes('…')) return 'Put ids and texts of your own where the body has “…”.'
  return isForm(operation) && !file ? 'Choose a file.' : undefined
}

function Inputs({
  operation,
  draft,
  onChange,
  onFile,
}: {
  operation: Operation
  draft: Draft
  onChange: (draft: Draft) => void
  onFile: (file: File | undefined) => void
}) {
  return (
    <>
      {Object.entries(draft.path).map(([name, value]) => (
        <Field key={name} label={name}>
          <Input
            className="font-mono text-sm"
            spellCheck={false}
            value={value}
            onFocus={(event) => isPlaceholder(value) && event.currentTarget.select()}
            onChange={(event) => onChange({ ...draft, path: { ...draft.path, [name]: event.currentTarget.value } })}
          />
        </Field>
      ))}
      {operation.parameters?.some((parameter) => parameter.in === 'query') && (
        <Field label="Query" optional>
          <Input
            className="font-mono text-sm"
            spellCheck={false}
            value={draft.query}
            onChange={(event) => onChange({ ...draft, query: event.currentTarget.value.replace(/^\?/, '') })}
          />
        </Field>
      )}
      {draft.body !== undefined && (
        <Field label="Body">
          <Textarea
            mono
            rows={4}
            spellCheck={false}
            value={draft.body}
            onChange={(event) => onChange({ ...draft, body: event.currentTarget.value })}
          />
        </Field>
      )}
      {isForm(operation) && (
        <Field label="File">
          <input
            type="file"
            aria-label="File"
            className="text-sm"
            onChange={(event) => onFile(event.currentTarget.files?.[0])}
          />
        </Field>
      )}
    </>
  )
}

function AnswerView({ answer: { status, statusText, took_ms, headers, body, ended } }: { answer: Answer }) {
  return (
    <div className="grid gap-2">
      <p className="flex flex-wrap items-center gap-2 text-sm">
        <Badge tone={status < 400 ? 'good' : 'bad'}>
          {status} {statusText}
        </Badge>
        <span className="text-muted">
          {Math.round(took_ms)} ms{ended ? '' : ', still coming'}
        </span>
      </p>
      <Disclosure quiet summary={`${headers.length} headers`}>
        <CodeBlock title="Headers" code={headers.map(([name, value]) => `${name}: ${value}`).join('\n')} />
      </Disclosure>
      {body !== '' && <CodeBlock title="Body of the answer" code={body} wrap />}
    </div>
  )
}
