import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function PlaygroundPage() {
  return (
    <Page title="Playground">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
