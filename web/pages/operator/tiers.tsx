import { useQuery } from '@tanstack/react-query'
import { tunery } from '../../lib/api.ts'
import { formatBytes, formatCount } from '../../lib/format.ts'
import { Loaded } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { Table } from '../../ui/table.tsx'
import { Code } from '../../ui/values.tsx'

const limit = (value: number | null) => (value === null ? 'any number' : formatCount(value))

export function Tiers() {
  const query = useQuery({ queryKey: ['hub', 'tiers'], queryFn: ({ signal }) => tunery.hub.tiers({ signal }) })
  return (
    <Card
      title="Tiers"
      description={
        <>
          Limits of accounts. <Code>TUNERY_PLANS_FILE</Code> has your own.
        </>
      }
      flush
    >
      <Loaded query={query}>
        {({ tiers }) => (
          <Table
            label="Tiers"
            rows={tiers}
            rowId={({ id }) => id}
            columns={[
              { id: 'name', header: 'Tier', grow: true, cell: (tier) => tier.name },
              {
                id: 'minute',
                header: 'Requests a minute',
                align: 'right',
                cell: (tier) => limit(tier.requests_per_minute),
              },
              { id: 'day', header: 'A day', align: 'right', from: 'sm', cell: (tier) => limit(tier.requests_per_day) },
              { id: 'concurrent', header: 'At once', align: 'right', cell: (tier) => limit(tier.max_concurrent) },
              {
                id: 'replicas',
                header: 'Replicas',
                align: 'right',
                from: 'sm',
                cell: (tier) => limit(tier.max_replicas),
              },
              {
                id: 'storage',
                header: 'Storage',
                align: 'right',
                from: 'sm',
                cell: (tier) => (tier.max_storage_mb === null ? 'any size' : formatBytes(tier.max_storage_mb * 1e6)),
              },
              {
                id: 'streams',
                header: 'Event streams',
                align: 'right',
                from: 'sm',
                cell: (tier) => limit(tier.max_event_streams),
              },
            ]}
          />
        )}
      </Loaded>
    </Card>
  )
}
