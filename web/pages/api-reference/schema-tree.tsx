// What a body or a response is made of, as a tree that unfolds part by part.
import { Link } from '@tanstack/react-router'
import type { Description, Parameter, Schema } from '../../lib/openapi.ts'
import { Disclosure } from '../../ui/disclosure.tsx'
import { alternatives, hasParts, limitsOf, resolve, typeOf } from './schema.ts'

/** Before the name of a schema in the page's address. */
export const schemaAnchor = 'schema-'

/** The fields of an object, the entries of a list, or the alternatives. */
export function SchemaTree({ description, schema }: { description: Description; schema: Schema }) {
  const { schema: found } = resolve(description, schema)
  const choices = alternatives(found)
  if (choices)
    return (
      <ul className="grid gap-2">
        {choices.map((choice, index) => (
          <li key={index}>
            <Part description={description} schema={choice} label={index === 0 ? 'One of' : 'or'} />
          </li>
        ))}
      </ul>
    )
  if (found.items) return <Part description={description} schema={found.items} label="Each entry" />
  if (found.properties)
    return (
      <ul className="divide-y divide-line">
        {Object.entries(found.properties).map(([name, each]) => (
          <li key={name} className="py-2 first:pt-0 last:pb-0">
            <FieldRow description={description} name={name} schema={each} required={found.required?.includes(name)} />
          </li>
        ))}
      </ul>
    )
  if (typeof found.additionalProperties === 'object')
    return <Part description={description} schema={found.additionalProperties} label="Each value" />
  return (
    <p className="text-sm">
      <Type description={description} schema={schema} />
    </p>
  )
}

export const ParameterRow = ({ description, parameter }: { description: Description; parameter: Parameter }) => (
  <FieldRow
    description={description}
    name={parameter.name}
    schema={{ ...parameter.schema, description: parameter.description ?? parameter.schema.description }}
    required={parameter.required}
  />
)

function FieldRow({
  description,
  name,
  schema,
  required,
}: {
  description: Description
  name: string
  schema: Schema
  required?: boolean | undefined
}) {
  const { schema: found } = resolve(description, schema)
  const limits = limitsOf(found)
  const values = found.enum?.filter((value) => value !== null)
  return (
    <div className="text-sm">
      <p className="flex flex-wrap items-baseline gap-x-2.5 gap-y-0.5">
        <code className="font-mono font-semibold break-all">{name}</code>
        <Type description={description} schema={schema} />
        {required && <span className="text-xs font-medium text-warn">required</span>}
        {limits.length > 0 && <span className="text-xs text-muted">{limits.join(' · ')}</span>}
      </p>
      {found.description && <p className="mt-0.5 max-w-3xl text-muted">{found.description}</p>}
      {values && values.length > 0 && (
        <p className="mt-0.5 text-muted">
          One of{' '}
          {values.map((value, index) => (
            <span key={String(value)}>
              {index > 0 && ', '}
              <code className="font-mono text-ink">{String(value)}</code>
            </span>
          ))}
        </p>
      )}
      {hasParts(description, schema) && (
        <div className="mt-1">
          <Disclosure quiet summary={`Fields of ${name}`}>
            <Nested description={description} schema={schema} />
          </Disclosure>
        </div>
      )}
    </div>
  )
}

function Part({ description, schema, label }: { description: Description; schema: Schema; label: string }) {
  const { schema: found } = resolve(description, schema)
  return (
    <div className="text-sm">
      <p className="flex flex-wrap items-baseline gap-x-2">
        <span className="text-muted">{label}</span>
        <Type description={description} schema={schema} />
        <span className="text-xs text-muted">{limitsOf(found).join(' · ')}</span>
      </p>
      {found.description && <p className="mt-0.5 max-w-3xl text-muted">{found.description}</p>}
      {hasParts(description, schema) && (
        <div className="mt-1">
          <Disclosure quiet summary="Fields">
            <Nested description={description} schema={schema} />
          </Disclosure>
        </div>
      )}
    </div>
  )
}

const Nested = ({ description, schema }: { description: Description; schema: Schema }) => (
  <div className="border-l-2 border-line pl-4">
    <SchemaTree description={description} schema={schema} />
  </div>
)

/** The type, with a link where it has a name. */
function Type({ description, schema }: { description: Description; schema: Schema }) {
  const { name, schema: found } = resolve(description, schema)
  const entry = found.items && resolve(description, found.items).name
  const linked = name ?? entry
  if (!linked) return <span className="text-muted">{typeOf(description, schema)}</span>
  return (
    <span className="text-muted">
      {!name && 'array of '}
      <Link
        to="/docs/api"
        hash={`${schemaAnchor}${linked}`}
        className={
          'rounded-sm text-accent-ink underline decoration-accent-ink/40 underline-offset-2 ' +
          'hover:decoration-accent-ink'
        }
      >
        {linked}
      </Link>
      {found.nullable && ' or null'}
    </span>
  )
}

/** One named schema by itself: where its links lead. */
export function SchemaPage({ description, name }: { description: Description; name: string }) {
  const schema = description.components.schemas[name]
  return (
    <section className="max-w-4xl">
      <p className="mb-3 text-sm">
        <Link to="/docs/api" className="text-accent-ink underline decoration-accent-ink/40 underline-offset-2">
          All operations
        </Link>
      </p>
      <h2 className="mb-3 font-mono text-xl font-semibold break-all">{name}</h2>
      {schema ? (
        <div className="rounded-lg bg-surface p-4 ring-1 ring-line">
          {schema.description && <p className="mb-3 text-muted">{schema.description}</p>}
          <SchemaTree description={description} schema={schema} />
        </div>
      ) : (
        <p className="text-muted">This version of the service has no schema of that name.</p>
      )}
    </section>
  )
}
