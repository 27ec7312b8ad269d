// One operation: what it takes, what it answers, how to call it, and the request itself.
import { Link } from '@tanstack/react-router'
import { LockKeyhole } from 'lucide-react'
import { Fragment, type ReactNode, useState } from 'react'
import type { Description, Operation, Schema } from '../../lib/openapi.ts'
import { CodeTabs } from '../../ui/code.tsx'
import { Disclosure } from '../../ui/disclosure.tsx'
import { Badge } from '../../ui/feedback.tsx'
import { Run } from './run.tsx'
import { draftOf, mediaTypeOf, samplesOf } from './samples.ts'
import { resolve } from './schema.ts'
import { ParameterRow, SchemaTree } from './schema-tree.tsx'

export function OperationCard({ operation, description }: { operation: Operation; description: Description }) {
  // What the reader has put into the request is in the examples too.
  const [draft, setDraft] = useState(() => draftOf(description, operation))
  const parameters = (operation.parameters ?? []).map((parameter) => ({
    ...parameter,
    order: ['path', 'query', 'header'].indexOf(parameter.in),
  }))
  const body = Object.values(operation.requestBody?.content ?? {})[0]?.schema
  return (
    <div className="grid gap-x-8 gap-y-6 border-t border-line px-4 py-4 2xl:grid-cols-2">
      <div className="grid min-w-0 content-start gap-5">
        <Access operation={operation} />
        {parameters.length > 0 && (
          <Block title="Parameters">
            <ul className="divide-y divide-line">
              {parameters
                .toSorted((one, other) => one.order - other.order)
                .map((parameter) => (
                  <li key={`${parameter.in} ${parameter.name}`} className="grid grid-cols-[3.5rem_1fr] py-2 first:pt-0">
                    <span className="text-xs leading-5 text-muted">{parameter.in}</span>
                    <ParameterRow description={description} parameter={parameter} />
                  </li>
                ))}
            </ul>
          </Block>
        )}
        {body && (
          <Block
            title="Body"
            note={`${mediaTypeOf(operation)}${operation.requestBody?.required === false ? ', may be left out' : ''}`}
          >
            <SchemaTree description={description} schema={body} />
          </Block>
        )}
        <Responses operation={operation} description={description} />
      </div>
      <div className="grid min-w-0 content-start gap-5">
        <CodeTabs label="Language" samples={samplesOf(operation, draft)} />
        <Run operation={operation} draft={draft} onChange={setDraft} />
      </div>
    </div>
  )
}

function Block({ title, note, children }: { title: string; note?: ReactNode; children: ReactNode }) {
  return (
    <section>
      <h4 className="mb-1.5 font-semibold">
        {title}
        {note && <span className="ml-2 text-sm font-normal text-muted">{note}</span>}
      </h4>
      {children}
    </section>
  )
}

function Access({ operation }: { operation: Operation }) {
  const { 'x-scope': scope, 'x-or-scope': other, 'x-also-scopes': also = [] } = operation
  const byField = Object.entries(operation['x-also-scopes-with'] ?? {})
  if (!scope) return null
  const words =
    scope === 'public' ? (
      'Anyone may call it, without a key.'
    ) : scope === 'session' ? (
      'For sessions of the dashboard alone: a key cannot call it.'
    ) : (
      <>
        The key needs the scope <code className="font-mono text-ink">{scope}</code>
        {other && (
          <>
            {' '}
            or <code className="font-mono text-ink">{other}</code>
          </>
        )}
        {also.map((scope) => (
          <Fragment key={scope}>
            {' '}
            and <code className="font-mono text-ink">{scope}</code>
          </Fragment>
        ))}
        {byField.map(([field, scopes]) => (
          <Fragment key={field}>
            ; with <code className="font-mono text-ink">{field}</code> also{' '}
            <code className="font-mono text-ink">{scopes.join(', ')}</code>
          </Fragment>
        ))}
        .
      </>
    )
  return (
    <p className="flex items-center gap-2 text-sm text-muted">
      <LockKeyhole aria-hidden className="size-4 shrink-0" />
      <span>{words}</span>
    </p>
  )
}

const meanings: Record<string, string> = {
  400: 'something in the request is wrong',
  401: 'no key, or one that is not valid',
  403: 'the key may not do this',
  404: 'there is no such thing',
  408: 'the request did not arrive in time',
  413: 'the body is too large',
  415: 'the body has another type',
  416: 'the range is not in the file',
  429: 'a limit is reached',
  431: 'the head is too large',
  500: 'the service failed',
  503: 'busy, starting or stopping',
}

function Responses({ operation, description }: { operation: Operation; description: Description }) {
  const all = Object.entries(operation.responses)
  const good = all.filter(([status]) => Number(status) < 400)
  const bad = all.filter(([status]) => Number(status) >= 400)
  const error = Object.values(bad[0]?.[1].content ?? {})[0]?.schema
  return (
    <Block title="Answers">
      <div className="grid gap-2.5">
        {good.map(([status, { content, description: words }]) => (
          <div key={status} className="text-sm">
            <p className="mb-1 flex flex-wrap items-center gap-2">
              <Badge tone="good">{status}</Badge>
              <span className="text-muted">{Object.keys(content ?? {}).join(' or ') || words}</span>
            </p>
            <Answer description={description} schema={Object.values(content ?? {})[0]?.schema} />
          </div>
        ))}
        {bad.length > 0 && (
          <Disclosure quiet summary={`Errors: ${bad.map(([status]) => status).join(', ')}`}>
            <ul className="mb-2 grid gap-0.5 text-sm text-muted">
              {bad.map(([status]) => (
                <li key={status}>
                  <code className="mr-2 font-mono text-ink">{status}</code>
                  {meanings[status]}
                </li>
              ))}
            </ul>
            <p className="mb-2 text-sm">
              All have one shape; their codes are in{' '}
              <Link
                to="/docs/$"
                params={{ _splat: 'errors' }}
                className="text-accent-ink underline decoration-accent-ink/40 underline-offset-2"
              >
                the list of errors
              </Link>
              .
            </p>
            {error && <SchemaTree description={description} schema={error} />}
          </Disclosure>
        )}
      </div>
    </Block>
  )
}

function Answer({ description, schema }: { description: Description; schema?: Schema | undefined }) {
  if (!schema) return null
  const { name, schema: found } = resolve(description, schema)
  if (found.format === 'binary') return null
  return (
    <Disclosure quiet summary={name ?? 'Fields'}>
      <div className="border-l-2 border-line pl-4">
        <SchemaTree description={description} schema={schema} />
      </div>
    </Disclosure>
  )
}
