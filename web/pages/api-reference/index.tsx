// The API reference: every operation of /v1/openapi.json, with requests that run.
import { useRouterState } from '@tanstack/react-router'
import { KeyRound } from 'lucide-react'
import { useEffect, useState } from 'react'
import { classes } from '../../lib/classes.ts'
import { type Description, type Operation, operationsOf, useDescription } from '../../lib/openapi.ts'
import { useSessionQuery } from '../../lib/session.ts'
import { Button, ExternalLink, TextLink } from '../../ui/button.tsx'
import { CodeBlock } from '../../ui/code.tsx'
import { ErrorState, SkeletonLines } from '../../ui/feedback.tsx'
import { Field, Input } from '../../ui/field.tsx'
import { Page } from '../../ui/layout.tsx'
import { MethodName } from '../../ui/method.tsx'
import { Popover } from '../../ui/popups.tsx'
import { useKey } from './key.ts'
import { OperationCard } from './operation.tsx'
import { SchemaPage, schemaAnchor } from './schema-tree.tsx'

export default function ApiReference() {
  const { data, error, refetch } = useDescription()
  if (error) return <ErrorState error={error} retry={() => void refetch()} />
  return (
    <Page
      title="API reference"
      width="full"
      description={
        <>
          Every operation below <code className="font-mono">{location.origin}/v1</code>, from the service’s own{' '}
          <ExternalLink href="/v1/openapi.json">OpenAPI description</ExternalLink>, with requests to run here.{' '}
          <TextLink to="/docs/$" params={{ _splat: 'errors' }}>
            Errors
          </TextLink>
          ,{' '}
          <TextLink to="/docs/$" params={{ _splat: 'guides/limits-and-usage' }}>
            limits and idempotency
          </TextLink>{' '}
          are the same for all.
        </>
      }
      actions={<Access />}
    >
      {data ? <Reference description={data} /> : <SkeletonLines lines={8} />}
    </Page>
  )
}

function Reference({ description }: { description: Description }) {
  const hash = useRouterState({ select: ({ location }) => decodeURIComponent(location.hash) })
  const tags = [...Map.groupBy(operationsOf(description), ({ tag }) => tag)]
  const schema = hash.startsWith(schemaAnchor) ? hash.slice(schemaAnchor.length) : undefined
  return (
    <div className="flex items-start gap-8">
      <div className="min-w-0 flex-1">
        {schema ? (
          <SchemaPage description={description} name={schema} />
        ) : (
          <>
            <Addressing />
            {tags.map(([tag, operations]) => (
              <Tag key={tag} tag={tag} operations={operations} description={description} hash={hash} />
            ))}
          </>
        )}
      </div>
      <nav
        aria-label="Operations"
        className="sticky top-16 max-h-[calc(100dvh-5rem)] w-52 shrink-0 overflow-y-auto text-sm max-xl:hidden"
      >
        <h2 className="mb-1.5 pl-3 font-semibold">Operations</h2>
        <ul className="border-l border-line">
          {tags.map(([tag, operations]) => (
            <li key={tag}>
              <a href={`#${anchorOf(tag)}`} className="focus-inset block py-1 pr-2 pl-3 text-muted hover:text-ink">
                {tag} <span className="text-faint">{operations.length}</span>
              </a>
            </li>
          ))}
        </ul>
      </nav>
    </div>
  )
}

const anchorOf = (tag: string) => `tag-${tag.toLowerCase().replaceAll(' ', '-')}`

function Addressing() {
  const code = `curl ${location.origin}/v1/user/profile -H "Authorization: Bearer $TUNERY_KEY"`
  return (
    <section className="mb-8 max-w-3xl">
      <p className="mb-3">
        A request carries a key as a bearer token; each operation says which scope the key needs. Bodies are JSON, times
        ISO 8601. Lists have pages: <code className="font-mono">limit</code>, and{' '}
        <code className="font-mono">after</code> with what the last page named.
      </p>
      <CodeBlock code={code} />
    </section>
  )
}

/** The operations of a tag, a line each. What an operation is made of is rendered when it is opened. */
function Tag({
  tag,
  operations,
  description,
  hash,
}: {
  tag: string
  operations: Operation[]
  description: Description
  hash: string
}) {
  return (
    <section className="mb-9">
      <h2 id={anchorOf(tag)} className="mb-2.5 scroll-mt-18 text-xl font-semibold tracking-tight">
        {tag}
      </h2>
      <div className="divide-y divide-line overflow-hidden rounded-lg bg-surface ring-1 ring-line">
        {operations.map((operation) => (
          <Entry key={operation.id} operation={operation} description={description} named={hash === operation.id} />
        ))}
      </div>
    </section>
  )
}

function Entry({
  operation,
  description,
  named,
}: {
  operation: Operation
  description: Description
  /** The address names it. */
  named: boolean
}) {
  const [open, setOpen] = useState(named)
  const { id, method, path, summary } = operation
  useEffect(() => {
    if (!named) return
    setOpen(true)
    // After it has its height.
    requestAnimationFrame(() => document.getElementById(id)?.scrollIntoView())
  }, [named, id])
  return (
    <article id={id} className="scroll-mt-16">
      <h3>
        <button
          type="button"
          aria-expanded={open}
          onClick={() => {
            setOpen(!open)
            // The address leads here, without a jump.
            if (!open) history.replaceState(history.state, '', `#${id}`)
          }}
          className={classes(
            'focus-inset flex w-full flex-wrap items-baseline gap-x-3 gap-y-0.5 px-4 py-2.5 text-left hover:bg-hover',
            open && 'bg-hover/60',
          )}
        >
          <MethodName method={method} className="w-14" />
          <code className="min-w-0 font-mono text-sm break-all">{path}</code>
          <span className="min-w-0 flex-1 basis-64 text-muted sm:text-right">{summary}</span>
        </button>
      </h3>
      {open && <OperationCard operation={operation} description={description} />}
    </article>
  )
}

/** With what requests of this page are signed. */
function Access() {
  const session = useSessionQuery()
  const [key, setKey] = useKey()
  const who = key ? 'a pasted key' : session.data ? session.data.profile.name : undefined
  return (
    <Popover
      align="end"
      title="Who runs the requests"
      trigger={<Button icon={<KeyRound aria-hidden />}>{who ? `Runs as ${who}` : 'Set a key'}</Button>}
    >
      <div className="grid gap-3">
        <p className="text-sm text-muted">
          {session.data
            ? `You are signed in: requests run as ${session.data.profile.name}, unless a key stands here.`
            : 'You are not signed in. Paste a key to run requests.'}{' '}
          The key stays in this page’s memory and is gone with it.
        </p>
        <Field label="Key" optional>
          <Input
            type="password"
            autoComplete="off"
            spellCheck={false}
            placeholder="tny_…"
            value={key}
            onChange={(event) => setKey(event.currentTarget.value.trim())}
          />
        </Field>
        {key && <Button onClick={() => setKey('')}>Forget the key</Button>}
      </div>
    </Popover>
  )
}
