PRAGMA application_id = 1919902834;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE attempt (
        thread INTEGER NOT NULL,
        attempt_id TEXT NOT NULL,
        turn_id TEXT NOT NULL,
        goal_id TEXT,
        origin_thread_id TEXT,
        report INTEGER NOT NULL,
        usage TEXT NOT NULL,
        crc INTEGER NOT NULL,
        PRIMARY KEY (thread, attempt_id)
    ) WITHOUT ROWID;
INSERT INTO "attempt" VALUES(1,'a','u','g',NULL,1,'{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}',219464755);
INSERT INTO "attempt" VALUES(2,'a','u','g',NULL,1,'{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}',-423719794);
CREATE TABLE checkpoint (
        thread_id TEXT NOT NULL PRIMARY KEY,
        position INTEGER NOT NULL,
        fold_version INTEGER NOT NULL,
        body BLOB NOT NULL,
        crc INTEGER NOT NULL
    );
INSERT INTO "checkpoint" VALUES('archived',8,2,X'789C6551416E833010FCCB9E91DAB4510F7CA08F482364E12D208CED7AD7A451C45BFA91DEF2B1EE42A08DCAC99E9D999D3117780FCE562326EA8287F2A9008F9F5C117E40F972BB748CC382C89873F204E5053294BBA9001DCAFD70013E4784123261AA0624320D82F0C541D0D774FDBE7EE15B7E940FA662A31BA28ED878FEAF319E4E98603A16104E7E89D1D975F90156C1516238435C6936616808B84143B0E8941C051940ACC41BBDB65D5227AC43B28BCAA4BAED46B40F7BF8C35B66758B752F708F67B9E989EAA00DB626DC263456E3CF877B4BA92C821607F3FBD8BB0246E3B2680F3E3B77D4A2796E546A2E633BDF2C210D4BF7C8374B59913086C4B3C57DE94D1F535005871EB5E97301B5000E591BADA8CA031BB7017B8919738A81B41119514808F16D82B0E62D8DFC9069FA01CC73C32B',-1816443967);
INSERT INTO "checkpoint" VALUES('active',8,2,X'789C6551414EC33010FCCB9E2341A1E2900FF0885245AB6449A23AB6F1AE5BAA2A6FE123DCFA317693341491933D3B333BE35CE03DB8A63A52E23E78289F0AF0F42915D307942FCBA5171A6644C7929367282F90A1DC8C05D850EFBB0BC8391294909952351033B604CA5707455FD3F5FBFA456FF9513F188B958ECC3D0B7AF9AF41CF274A30EE0B08273FC7E89BDBF21DDC047B8DE190A5B26CCAB010B0404368C819392A32805AA937796B3BA74E5487D4CC2AACA53FD2C316EE58F3A4EEA83E287CA0B3DEECC475B0FC6B0FE9126163E1A7C3BDA1D6557A4703FE3EF4A68023BAACCA9DCFCEEDAD649EDA9496099BDEB7734014ED1D6531D4058962483259FC2DBCEA630AA69070206BF95C40AD8023B13E37D4E441D0ADC05663C69C6260EBC3A80A0DA1BE6D50D6B4A5D59F318E3F8CF0C197',-378570731);
CREATE TABLE entry (
        thread INTEGER NOT NULL,
        position INTEGER NOT NULL,
        record_id TEXT NOT NULL,
        body TEXT NOT NULL,
        crc INTEGER NOT NULL,
        PRIMARY KEY (thread, position),
        UNIQUE (thread, record_id)
    );
INSERT INTO "entry" VALUES(1,0,'','{"type":"thread","metadata":{"thread_id":"active","created_at":"2026-01-02T03:04:05.678901Z","updated_at":"2026-01-02T03:04:05.678901Z","labels":{"team":"blue"}}}',-1159718877);
INSERT INTO "entry" VALUES(1,1,'active/1','{"type":"event","event_id":"active/1","timestamp":"2026-01-02T03:04:06.678901Z","source":"thread","event":{"type":"turn.started","provider":"p","model":"m"},"seq":1,"thread_id":"active","turn_id":"u"}',-31247221);
INSERT INTO "entry" VALUES(1,2,'active/2','{"type":"event","event_id":"active/2","timestamp":"2026-01-02T03:04:07.678901Z","source":"thread","event":{"type":"turn.item_appended","index":0,"item":{"type":"user_message","text":"Grüße\u0000"}},"seq":2,"thread_id":"active","turn_id":"u"}',-930713570);
INSERT INTO "entry" VALUES(1,3,'active/3','{"type":"event","event_id":"active/3","timestamp":"2026-01-02T03:04:08.678901Z","source":"thread","event":{"type":"usage.recorded","attempt_id":"a","report":1,"turn_id":"u","usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4},"purpose":"sampling","goal_id":"g"},"thread_id":"active","turn_id":"u"}',-1226490811);
INSERT INTO "entry" VALUES(1,4,'active/4','{"type":"extension_state","record_id":"active/4","extension_id":"check","key":"k","scope":{"type":"thread","thread_id":"active"},"schema_version":1,"value":[null]}',-340922111);
INSERT INTO "entry" VALUES(1,5,'active/5','{"type":"event","event_id":"active/5","timestamp":"2026-01-02T03:04:10.678901Z","source":"thread","event":{"type":"turn.item_appended","index":0,"item":{"type":"assistant_message","text":"answer"}},"seq":3,"thread_id":"active","turn_id":"u"}',1901075579);
INSERT INTO "entry" VALUES(1,6,'active/6','{"type":"item_event","event_id":"active/6","timestamp":"2026-01-02T03:04:11.678901Z","thread_id":"active","turn_id":"u","event":{"type":"item_delta","item_id":"u-message","delta":{"type":"agent_message_text","delta":"x"}},"seq":1}',-437369923);
INSERT INTO "entry" VALUES(1,7,'active/7','{"type":"event","event_id":"active/7","timestamp":"2026-01-02T03:04:12.678901Z","source":"thread","event":{"type":"thread.metadata_changed","labels":{"team":"red"}},"seq":4,"thread_id":"active"}',-1831645128);
INSERT INTO "entry" VALUES(1,8,'active/8','{"type":"event","event_id":"active/8","timestamp":"2026-01-02T03:04:13.678901Z","source":"thread","event":{"type":"turn.completed","usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4},"finish_reason":"stop"},"seq":5,"thread_id":"active","turn_id":"u"}',899380488);
INSERT INTO "entry" VALUES(2,0,'','{"type":"thread","metadata":{"thread_id":"archived","created_at":"2026-01-02T03:04:05.678901Z","updated_at":"2026-01-02T03:04:05.678901Z","labels":{"team":"blue"}}}',1831056464);
INSERT INTO "entry" VALUES(2,1,'archived/1','{"type":"event","event_id":"archived/1","timestamp":"2026-01-02T03:04:06.678901Z","source":"thread","event":{"type":"turn.started","provider":"p","model":"m"},"seq":1,"thread_id":"archived","turn_id":"u"}',1692098008);
INSERT INTO "entry" VALUES(2,2,'archived/2','{"type":"event","event_id":"archived/2","timestamp":"2026-01-02T03:04:07.678901Z","source":"thread","event":{"type":"turn.item_appended","index":0,"item":{"type":"user_message","text":"Grüße\u0000"}},"seq":2,"thread_id":"archived","turn_id":"u"}',830611532);
INSERT INTO "entry" VALUES(2,3,'archived/3','{"type":"event","event_id":"archived/3","timestamp":"2026-01-02T03:04:08.678901Z","source":"thread","event":{"type":"usage.recorded","attempt_id":"a","report":1,"turn_id":"u","usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4},"purpose":"sampling","goal_id":"g"},"thread_id":"archived","turn_id":"u"}',-220082620);
INSERT INTO "entry" VALUES(2,4,'archived/4','{"type":"extension_state","record_id":"archived/4","extension_id":"check","key":"k","scope":{"type":"thread","thread_id":"archived"},"schema_version":1,"value":[null]}',1831003944);
INSERT INTO "entry" VALUES(2,5,'archived/5','{"type":"event","event_id":"archived/5","timestamp":"2026-01-02T03:04:10.678901Z","source":"thread","event":{"type":"turn.item_appended","index":0,"item":{"type":"assistant_message","text":"answer"}},"seq":3,"thread_id":"archived","turn_id":"u"}',1308702865);
INSERT INTO "entry" VALUES(2,6,'archived/6','{"type":"item_event","event_id":"archived/6","timestamp":"2026-01-02T03:04:11.678901Z","thread_id":"archived","turn_id":"u","event":{"type":"item_delta","item_id":"u-message","delta":{"type":"agent_message_text","delta":"x"}},"seq":1}',1882222525);
INSERT INTO "entry" VALUES(2,7,'archived/7','{"type":"event","event_id":"archived/7","timestamp":"2026-01-02T03:04:12.678901Z","source":"thread","event":{"type":"thread.metadata_changed","labels":{"team":"red"}},"seq":4,"thread_id":"archived"}',-2043277026);
INSERT INTO "entry" VALUES(2,8,'archived/8','{"type":"event","event_id":"archived/8","timestamp":"2026-01-02T03:04:13.678901Z","source":"thread","event":{"type":"turn.completed","usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4},"finish_reason":"stop"},"seq":5,"thread_id":"archived","turn_id":"u"}',-774595901);
CREATE TABLE label (
        thread_id TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (thread_id, key)
    ) WITHOUT ROWID;
INSERT INTO "label" VALUES('active','team','red');
INSERT INTO "label" VALUES('archived','team','red');
CREATE TABLE tally (archived INTEGER PRIMARY KEY, threads INTEGER NOT NULL);
INSERT INTO "tally" VALUES(0,1);
INSERT INTO "tally" VALUES(1,1);
CREATE TABLE thread (
        number INTEGER PRIMARY KEY,
        thread_id TEXT NOT NULL,
        metadata TEXT NOT NULL,
        updated_at TEXT NOT NULL,
        archived_at TEXT,
        last_position INTEGER NOT NULL,
        last_seq INTEGER NOT NULL,
        last_item_seq INTEGER NOT NULL,
        crc INTEGER NOT NULL
    );
INSERT INTO "thread" VALUES(1,'active','{"thread_id":"active","created_at":"2026-01-02T03:04:05.678901Z","updated_at":"2026-01-02T03:04:13.678901Z","title":"Grüße\u0000","labels":{"team":"red"},"message_count":2,"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4},"usage_tiers":[[null,1]]}','2026-01-02T03:04:13.678901Z',NULL,8,5,1,-1864157824);
INSERT INTO "thread" VALUES(2,'archived','{"thread_id":"archived","created_at":"2026-01-02T03:04:05.678901Z","updated_at":"2026-01-02T03:04:13.678901Z","title":"Grüße\u0000","labels":{"team":"red"},"message_count":2,"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4},"usage_tiers":[[null,1]]}','2026-01-02T03:04:13.678901Z','2026-11-30T16:45:26.525532Z',8,5,1,539885780);
CREATE UNIQUE INDEX thread_name ON thread (thread_id);
CREATE UNIQUE INDEX thread_name_again ON thread (thread_id);
CREATE INDEX thread_listing ON thread (archived_at, updated_at, thread_id);
CREATE VIEW record (thread_id, position, record_id, kind, turn_id, body) AS
        SELECT
            thread.thread_id,
            entry.position,
            entry.record_id,
            CASE json_extract(entry.body, '$.type')
                WHEN 'event' THEN json_extract(entry.body, '$.event.type')
                ELSE json_extract(entry.body, '$.type')
            END,
            coalesce(json_extract(entry.body, '$.turn_id'), json_extract(entry.body, '$.scope.turn_id')),
            entry.body
        FROM thread JOIN entry ON entry.thread = thread.number
        WHERE entry.position > 0;
CREATE UNIQUE INDEX attempt_again ON attempt (attempt_id, thread);
CREATE INDEX label_pair ON label (key, value);
CREATE INDEX label_again ON label (value, key);
COMMIT;
