import type { UseQueryResult } from '@tanstack/react-query'
import type { Deployment, Page } from '../../../sdk/index.ts'
import { LinkButton, TextLink } from '../../ui/button.tsx'
import { EmptyState, Loaded, Status } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { Table } from '../../ui/table.tsx'
import { Code, RelativeTime } from '../../ui/values.tsx'

const columns = [
  { id: 'name', header: 'Name', cell: (each: Deployment) => each.name, grow: true },
  { id: 'status', header: 'Status', cell: (each: Deployment) => <Status status={each.status} /> },
  { id: 'model', header: 'Model', cell: (each: Deployment) => <Code>{each.model}</Code>, from: 'md' },
  {
    id: 'changed',
    header: 'Changed',
    align: 'right',
    cell: (each: Deployment) => <RelativeTime time={each.updated_at} />,
    from: 'sm',
  },
] as const

/** The names that clients call. */
export function Served({ query }: { query: UseQueryResult<Page<Deployment>> }) {
  const empty = (
    <EmptyState compact title="No model has a name yet" action={<LinkButton to="/deployments">Deployments</LinkButton>}>
      A deployment is a name that your program calls. What it stands for can change without a change of the program.
    </EmptyState>
  )
  return (
    <Card title="Served" actions={query.data?.has_more && <TextLink to="/deployments">All deployments</TextLink>} flush>
      <Loaded query={query} skeleton={<div className="h-40" />}>
        {({ items }) => (
          <Table
            label="Served"
            columns={columns}
            rows={items}
            rowId={({ id }) => id}
            link={({ name }) => ({ to: '/deployments/$name', params: { name } })}
            empty={empty}
          />
        )}
      </Loaded>
    </Card>
  )
}
