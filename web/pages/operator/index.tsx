import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function OperatorPage() {
  return (
    <Page title="Operator">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
