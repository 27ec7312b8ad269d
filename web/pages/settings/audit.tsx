import { useMemo, useState } from 'react'
import type { AuditEntry } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatTime } from '../../lib/format.ts'
import { useDatasetNames, useKeyNames, useModelNames } from '../../lib/names.ts'
import { usePages } from '../../lib/pages.ts'
import { TextLink } from '../../ui/button.tsx'
import { CodeBlock } from '../../ui/code.tsx'
import { EmptyState, Loaded } from '../../ui/feedback.tsx'
import { Input } from '../../ui/field.tsx'
import { Card, Facts } from '../../ui/layout.tsx'
import { Dialog } from '../../ui/popups.tsx'
import { Table } from '../../ui/table.tsx'
import { Code, RelativeTime } from '../../ui/values.tsx'

const byWhom = ({ kind, user_id }: AuditEntry['by'], names: Map<string, string>) =>
  user_id
    ? (names.get(user_id) ?? user_id)
    : ({ operator: 'Operator', command_line: 'Command line' }[kind as string] ?? 'Service')

/** The pages of things, by what their ids begin with. */
function Target({ id, name }: { id: string; name: string }) {
  if (id.startsWith('job_'))
    return (
      <TextLink to="/jobs/$jobId" params={{ jobId: id }}>
        {name}
      </TextLink>
    )
  if (id.startsWith('mdl_'))
    return (
      <TextLink to="/models/$modelId" params={{ modelId: id }}>
        {name}
      </TextLink>
    )
  if (id.startsWith('ds_'))
    return (
      <TextLink to="/datasets/$datasetId" params={{ datasetId: id }}>
        {name}
      </TextLink>
    )
  if (id.startsWith('eval_'))
    return (
      <TextLink to="/evaluations/$evaluationId" params={{ evaluationId: id }}>
        {name}
      </TextLink>
    )
  return name
}

/** What was changed in the account, and by whom. */
export function Audit() {
  const [filter, setFilter] = useState('')
  const [shown, setShown] = useState<AuditEntry>()
  const {
    query,
    rows = [],
    more,
  } = usePages(['audit', 'list'], (options) => tunery.audit.list({ limit: 100 }, options))
  const people = usePages(['members', 'list'], (options) => tunery.members.list({ limit: 50 }, options))
  const modelName = useModelNames()
  const datasetName = useDatasetNames()
  const keyName = useKeyNames()
  /** What it is called now, or was when it was changed. */
  const nameOf = ({ target, details }: AuditEntry) => {
    const name = names.get(target) ?? keyName(datasetName(modelName(target)))
    return name === target && typeof details.name === 'string' && details.name !== '' ? details.name : name
  }
  const names = useMemo(() => new Map(people.rows?.map(({ id, name }) => [id, name])), [people.rows])
  const text = filter.trim().toLowerCase()
  const found = rows.filter(
    (entry) =>
      !text ||
      [entry.action, entry.target, nameOf(entry), byWhom(entry.by, names)].some((each) =>
        each.toLowerCase().includes(text),
      ),
  )
  return (
    <Card
      title="Audit log"
      description="Newest first"
      actions={
        <Input
          aria-label="Filter the loaded entries"
          placeholder="Filter entries"
          value={filter}
          onChange={(event) => setFilter(event.target.value)}
          className="w-64"
        />
      }
      flush
    >
      <Loaded query={query}>
        {() => (
          <Table
            label="Audit log"
            rows={found}
            rowId={({ id }) => id}
            more={more}
            onOpen={setShown}
            maxHeight="70vh"
            empty={<EmptyState compact title={text ? 'No matching entries' : 'No entries yet'} />}
            columns={[
              { id: 'action', header: 'Action', cell: (each) => each.action },
              { id: 'target', header: 'Object', grow: true, cell: nameOf, from: 'sm' },
              { id: 'by', header: 'By', cell: (each) => byWhom(each.by, names), from: 'md' },
              { id: 'when', header: 'When', align: 'right', cell: (each) => <RelativeTime time={each.created_at} /> },
            ]}
          />
        )}
      </Loaded>
      <Dialog open={shown !== undefined} onOpenChange={(open) => !open && setShown(undefined)} title={shown?.action}>
        {shown && (
          <div className="grid gap-4">
            <Facts
              facts={[
                ['When', formatTime(shown.created_at)],
                ['By', byWhom(shown.by, names)],
                ['API key', shown.by.key_id ? keyName(shown.by.key_id) : '–'],
                ['Object', <Target key="object" id={shown.target} name={nameOf(shown)} />],
                ['ID', <Code key="id">{shown.target}</Code>],
              ]}
            />
            <CodeBlock title="Details" code={JSON.stringify(shown.details, null, 2)} wrap />
          </div>
        )}
      </Dialog>
    </Card>
  )
}
