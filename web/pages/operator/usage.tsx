import { useQuery } from '@tanstack/react-query'
import { tunery } from '../../lib/api.ts'
import { refresh_ms } from '../../lib/query.ts'
import { EmptyState, Loaded } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { Table } from '../../ui/table.tsx'
import { Count, Money } from '../../ui/values.tsx'

/** What each account used today. */
export function UsageToday() {
  const query = useQuery({
    queryKey: ['operator', 'usage'],
    queryFn: ({ signal }) => tunery.operator.usage({}, { signal }),
    refetchInterval: 6 * refresh_ms,
  })
  return (
    <Card title="Usage today" description="Days are UTC." flush>
      <Loaded query={query}>
        {({ items, currency }) => (
          <Table
            label="Usage today"
            rows={items}
            rowId={({ account_id }) => account_id}
            empty={<EmptyState compact title="No account has used anything today" />}
            columns={[
              { id: 'name', header: 'Account', grow: true, cell: (account) => account.name },
              {
                id: 'requests',
                header: 'Requests',
                align: 'right',
                cell: (account) => <Count value={account.requests} />,
              },
              {
                id: 'tokens',
                header: 'Tokens',
                align: 'right',
                from: 'sm',
                cell: (account) => <Count compact value={account.prompt_tokens + account.completion_tokens} />,
              },
              {
                id: 'trained',
                header: 'Trained',
                align: 'right',
                from: 'md',
                cell: (account) => <Count compact value={account.trained_tokens} />,
              },
              {
                id: 'cost',
                header: 'Cost',
                align: 'right',
                cell: (account) => <Money value={account.cost} currency={currency} />,
              },
            ]}
          />
        )}
      </Loaded>
    </Card>
  )
}
